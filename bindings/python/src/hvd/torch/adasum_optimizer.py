"""An optimizer whose steps, not gradients, are combined over ranks, by Adasum.

Source: S. Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, List, Optional, Tuple

import torch

from hvd import basics
from hvd.basics import Adasum
from hvd.collectives import synchronize
from hvd.compression import Compressor
from hvd.process_sets import ProcessSet
from hvd.torch.reductions import allreduce_async_


class AdasumOptimizer(torch.optim.Optimizer):
    """Comes before the class of the user's optimizer; see DistributedOptimizer."""

    def _hvd_setup(
        self, named: List[Tuple[str, torch.Tensor]], compression: type[Compressor], passes: int, process_set: ProcessSet
    ) -> None:
        self._compression = compression
        self._process_set = process_set
        self.backward_passes_per_step = passes
        names = {id(p): name for name, p in named}
        all_parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        self._named = [(names.get(id(p)) or f"noname.{i}", p) for i, p in enumerate(all_parameters)]

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """This rank's own step, from which all ranks go on by the adaptive sum of all steps."""
        ranks = self._process_set.ranks or []
        if basics.current_job() is None or len(ranks) < 2 or basics.rank() not in ranks:
            return super().step(closure)
        before = [p.detach().clone(memory_format=torch.contiguous_format) for _, p in self._named]
        loss = super().step(closure)
        begun = []
        with torch.no_grad():
            for (name, p), start in zip(self._named, before):
                sent, ctx = self._compression.compress((p.detach() - start).contiguous())
                begun.append((allreduce_async_(sent, None, name, Adasum, process_set=self._process_set), sent, ctx))
            for (_, p), start, (handle, sent, ctx) in zip(self._named, before, begun):
                synchronize(handle)
                p.copy_(start.add_(self._compression.decompress(sent, ctx)))
        return loss

    def synchronize(self) -> None:
        """Does nothing: gradients stay each rank's own."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raises AssertionError: there is nothing that could be skipped."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """For scripts that call it: how often ``step`` is called decides."""
        self.backward_passes_per_step = passes
