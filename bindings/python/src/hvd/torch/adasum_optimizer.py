"""An optimizer that combines steps, instead of gradients, over ranks by Adasum.

Source: S. Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Callable

import torch

from hvd.core import state
from hvd.core.handles import synchronize_all
from hvd.core.reduce_op import Adasum
from hvd.torch.mpi_ops import allreduce_async_
from hvd.torch.wrapper import Wrapper


class AdasumOptimizer(Wrapper):
    """A mixin before the class of the user's optimizer; see DistributedOptimizer."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes this rank's own step, then replaces its change of the parameters with the adaptive sum over all ranks.
        """
        self._hvd_stepped()
        ranks = self.process_set.ranks or []
        if state.current_job() is None or len(ranks) < 2 or state.rank() not in ranks:
            return super().step(closure)
        named = list(self._hvd_parameters())
        before = [p.detach().clone(memory_format=torch.contiguous_format) for _, p in named]
        loss = super().step(closure)
        begun = []
        refused: Exception | None = None
        with torch.no_grad():
            for (name, p), start in zip(named, before):
                sent, ctx = self._compression.compress((p.detach() - start).contiguous())
                try:
                    begun.append((allreduce_async_(sent, None, name, Adasum, process_set=self.process_set), sent, ctx))
                except Exception as e:  # other ranks wait for the rest
                    refused = refused or e
            synchronize_all([handle for handle, _, _ in begun], refused)
            for (_, p), start, (_, sent, ctx) in zip(named, before, begun):
                p.copy_(start.add_(self._compression.decompress(sent, ctx)))
        return loss

    step.hooked = True  # type: ignore[attr-defined]  # PyTorch calls step hooks around the inner step

    def synchronize(self) -> None:
        """Does nothing: each rank keeps its own gradients."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raises AssertionError: there is nothing to skip."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Has no effect, because each call of ``step`` combines. Scripts call it."""
        self.backward_passes_per_step = passes
