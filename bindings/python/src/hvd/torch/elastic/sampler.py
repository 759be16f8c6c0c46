"""A sampler that knows how much of an epoch has been seen, on any number of ranks."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from hvd.core import state


class ElasticSampler(Sampler[int]):
    """Divides the rest of an epoch among the ranks. After ``load_state_dict`` or ``reset``, samples already seen do not
    return.

    ``dataset``: any object with a length. All ranks have the same order of the whole epoch, from ``seed`` + epoch; its
    first ``processed_num`` samples have been seen. If the rest does not divide evenly, some of its first samples appear
    twice. The order and the state are those of Horovod 0.28.1, so its checkpoints can be loaded.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch with no samples seen. Call it at the end of an epoch."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Records that every rank has seen a batch of ``batch_size`` samples. ``batch_idx`` is ignored."""
        self.processed_num += batch_size * self.num_replicas

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of this rank's batch ``batch_idx``, counted from 0 since the last ``reset``."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and the number of its samples seen."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a saved state."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divides the rest of the epoch among the present ranks."""
        self.num_replicas, self.rank = state.size(), state.rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        filled = itertools.islice(itertools.cycle(self.remaining_indices), self.total_size)
        self.indices = list(filled)[self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
