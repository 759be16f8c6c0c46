"""How the gradients of a step are reduced where Keras runs on PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd.core.compression import compressed_group
from hvd.core.handles import synchronize_all
from hvd.core.step_gradients import Described, StepGradients, name_of
from hvd.torch.adapter import OPS


class TorchGradients(StepGradients):
    """See StepGradients. Sparse gradients become dense: Keras's optimizers take no others here."""

    def _checked(self, gradient: Any, variable: Any) -> torch.Tensor:
        if not isinstance(gradient, torch.Tensor):
            name = name_of(variable)
            raise ValueError(f"hvd: the gradient of {name} is {gradient!r:.80}, which is no tensor")
        if not (gradient.is_floating_point() or gradient.is_complex()):
            raise ValueError(
                f"hvd: the gradient of {name_of(variable)} has the type {gradient.dtype}; gradients are floating-point or"
                " complex numbers"
            )
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        return dense.detach().contiguous()

    def _described(self, gradient: torch.Tensor, variable: Any) -> Described:
        return name_of(variable), f"{str(gradient.dtype).rpartition('.')[2]} {tuple(gradient.shape)}"

    def _reduced(
        self, parts: Sequence[Sequence[int]], gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        results = list(gradients)
        begun: list[tuple[Sequence[int], list[Any], int]] = []
        problem: Exception | None = None
        for part in sorted(parts, key=lambda part: -max(part)):  # in which order the backward pass completes them
            try:
                begun.append(self._begin(part, gradients, variables))
            except Exception as e:  # the others wait for this step: it is raised when the rest is done
                problem = problem or e
        reduced = synchronize_all([handle for _, _, handle in begun], problem)
        for (part, contexts, _), tensors in zip(begun, reduced):
            for i, tensor, ctx in zip(part, tensors, contexts):
                results[i] = self._compression.decompress(tensor, ctx)
        return results

    def _begin(
        self, part: Sequence[int], gradients: Sequence[Any], variables: Sequence[Any]
    ) -> tuple[Sequence[int], list[Any], int]:
        sent, contexts, wire = compressed_group(self._compression, [gradients[i] for i in part])
        outputs = [
            # The gradient that PyTorch keeps for a variable is no other's; any other tensor may be, and stays.
            tensor if _is_kept(tensor, variables[i]) else torch.empty_like(tensor) for i, tensor in zip(part, sent)
        ]
        handle = OPS.allreduce(
            sent, outputs, False, f"{self._name}.{part[0]}", self._how(wire), self.process_set,
            wake=False,  # this thread waits at once, and does the work itself
        )
        return part, contexts, handle


def _is_kept(tensor: torch.Tensor, variable: Any) -> bool:
    kept = getattr(getattr(variable, "value", None), "grad", None)
    return kept is not None and kept.data_ptr() == tensor.data_ptr()
