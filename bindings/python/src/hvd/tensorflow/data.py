"""Horovod's functions for tf.data's service, which hvd does not support."""

from __future__ import annotations

from typing import Any

_NAMES = ("TfDataServiceConfig", "compute_service", "send_to_data_service", "tf_data_service")


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise AttributeError(
        f"hvd.tensorflow.data.{name}: hvd starts no tf.data service; start one with tf.data.experimental.service and"
        " pass its address to the ranks, or give each rank its shard: dataset.shard(hvd.size(), hvd.rank())"
    )
