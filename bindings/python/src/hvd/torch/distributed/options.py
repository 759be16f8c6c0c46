"""The options of a process group, for tensors on GPUs."""

from __future__ import annotations

from typing import Any

from hvd import _core

_MOST_CTAS = 64  # in NCCL


class Config:
    """NCCL's part of ``Options``. ``min_ctas``, ``max_ctas``: the fewest and the most thread blocks of a collective; 0:
    NCCL decides. ``net_name``: the network between hosts, such as "IB" or "Socket"; empty: NCCL decides.
    """

    def __init__(self) -> None:
        self.min_ctas = 0
        self.max_ctas = 0
        self.net_name = ""


class Options:
    """For ``init_process_group("hvd", pg_options=...)`` and ``new_group``, with the names of ProcessGroupNCCL.Options,
    which are accepted too. ``is_high_priority_stream``: whether collectives run before other work of the GPU.
    """

    def __init__(self, is_high_priority_stream: bool = True) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config = Config()


def nccl_options(given: Any) -> _core.NcclOptions:
    """NCCL's options from an ``Options`` or ProcessGroupNCCL.Options; None: the defaults. Raises ValueError for wrong
    values, and for other objects.
    """
    made = _core.NcclOptions()
    if given is None:
        return made
    config = getattr(given, "config", None)
    priority = getattr(given, "is_high_priority_stream", None)
    if config is None or not isinstance(priority, bool):
        raise ValueError(
            f"hvd: pg_options is {given!r:.80}; allowed: hvd.torch.distributed.Options, or ProcessGroupNCCL.Options"
        )
    made.high_priority = priority
    made.min_ctas, made.max_ctas = (_ctas(config, name) for name in ("min_ctas", "max_ctas"))
    if 0 < made.max_ctas < made.min_ctas:
        raise ValueError(f"hvd: pg_options: min_ctas={made.min_ctas} is more than max_ctas={made.max_ctas}")
    made.network = getattr(config, "net_name", None) or ""
    return made


def _ctas(config: Any, name: str) -> int:
    value = getattr(config, name, 0)
    if value == -(1 << 31):  # NCCL's own "not set"
        return 0
    if not isinstance(value, int) or not 0 <= value <= _MOST_CTAS:
        raise ValueError(f"hvd: pg_options: {name}={value!r:.40}; allowed: 1 to {_MOST_CTAS}, or 0: NCCL decides")
    return value
