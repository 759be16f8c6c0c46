"""A sampler that knows which samples of an epoch have been seen, on any number of ranks."""

from __future__ import annotations

import math
import random
from typing import Any, Dict, Iterator, List, Set, Sized

from torch.utils.data import Sampler

from hvd import basics


class ElasticSampler(Sampler[int]):
    """Divides among the ranks what is left of an epoch: after ``load_state_dict`` or ``reset`` no sample comes twice.

    ``dataset``: anything with a length. The same order on all ranks, by ``seed`` and epoch. Where the ranks cannot have
    equally many samples, some of the first come twice.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_indices: Set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, at its end that is: after what was seen is no longer of interest."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """This rank has seen batch ``batch_idx``, from 0, of ``batch_size`` samples."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: List[int]) -> None:
        """These samples were seen."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> List[int]:
        """The samples of a batch of this rank."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> Dict[str, Any]:
        """The epoch, and what was seen of it."""
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Goes on from there."""
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def reset(self) -> None:
        """Divides what is left among the ranks that there are now."""
        self.num_replicas, self.rank = basics.size(), basics.rank()
        left = [i for i in range(len(self.dataset)) if i not in self.processed_indices]
        if self.shuffle:
            random.Random(f"{self.seed} {self.epoch}").shuffle(left)
        self.num_samples = math.ceil(len(left) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        repeated = left * (self.total_size // len(left) + 1) if left else []
        self.indices = repeated[: self.total_size][self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
