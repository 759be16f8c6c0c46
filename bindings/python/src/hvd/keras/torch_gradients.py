"""Reduces the gradients of a step when Keras runs on PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

import torch

from hvd.core import state
from hvd.core.compression import compressed_group
from hvd.core.step_gradients import Described, Step, StepGradients, checksum_of, name_of
from hvd.torch.adapter import OPS


class TorchGradients(StepGradients):
    """See StepGradients. Sparse gradients become dense, because Keras's optimizers accept only dense ones here."""

    def _checked(self, gradient: Any, variable: Any) -> torch.Tensor:
        gradient_of = f"hvd: rank {state.rank()}: the gradient of {name_of(variable)}"
        if not isinstance(gradient, torch.Tensor):
            raise ValueError(f"{gradient_of} is {gradient!r:.80}, which is not a tensor")
        if not (gradient.is_floating_point() or gradient.is_complex()):
            raise ValueError(
                f"{gradient_of} has the type {gradient.dtype}; gradients are floating-point or complex numbers"
            )
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        return dense.detach().contiguous()

    def _described(self, gradient: torch.Tensor, variable: Any) -> Described:
        return name_of(variable), f"{str(gradient.dtype).rpartition('.')[2]} {tuple(gradient.shape)}"

    def _reduced(
        self, parts: Sequence[Sequence[int]], gradients: Sequence[Any], variables: Sequence[Any],
        describe: Callable[[], Mapping[int, Described]],
    ) -> list[Any]:
        results = list(gradients)
        parts = sorted(parts, key=lambda part: -max(part))  # the order in which the backward pass completes them
        names = [f"{self._prefix}.{part[0]}" for part in parts]
        contexts: dict[int, Any] = {}
        step = Step(
            self._name, self.process_set, self._how(-1), checksum_of(names, parts),
            lambda: [("grouped_allreduce", name) for name in names], describe,
        )
        for part, name in zip(parts, names):
            try:
                sent, needed, wire = compressed_group(self._compression, [gradients[i] for i in part])
                contexts.update(zip(part, needed))
                outputs = [
                    # A gradient that PyTorch keeps for a variable belongs only to it. Any other tensor may have other
                    # users, so it is not changed.
                    tensor if _is_kept(tensor, variables[i]) else torch.empty_like(tensor)
                    for i, tensor in zip(part, sent)
                ]
                step.handles.append(OPS.allreduce(
                    sent, outputs, False, name, self._how(wire), self.process_set,
                    wake=False,  # this thread waits next, and does the work itself
                ))
            except Exception as e:
                step.refuse(("grouped_allreduce", name), e)
        for part, tensors in zip(parts, step.wait()):
            for i, tensor in zip(part, tensors):
                results[i] = self._compression.decompress(tensor, contexts[i])
        return results


def _is_kept(tensor: torch.Tensor, variable: Any) -> bool:
    kept = getattr(getattr(variable, "value", None), "grad", None)
    return kept is not None and kept.data_ptr() == tensor.data_ptr()
