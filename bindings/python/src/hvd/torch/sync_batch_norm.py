"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hvd.core import state
from hvd.core.reduce_op import Sum
from hvd.torch.mpi_ops import allgather, allreduce


class SyncBatchNorm(_BatchNorm):
    """Like torch.nn.BatchNorm*d, with mean and variance over the batches of all ranks, which may differ in length.

    Inputs: (N, C) or (N, C, ...). Exchanges 2 C + 1 numbers in the forward pass and 2 C in the backward pass, once
    each. In evaluation, and with one rank, it is exactly batch normalisation. Raises ValueError for inputs with fewer
    than two dimensions.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalised input."""
        self._check_input_dim(input)
        if not self.training or state.size() == 1:
            return super().forward(input)
        apply: Any = _Normalize.apply
        mean, variance, count, output = apply(input, self.weight, self.bias, self.eps)
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            momentum = self.momentum
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
                if momentum is None:
                    momentum = 1.0 / float(self.num_batches_tracked)
            with torch.no_grad():
                unbiased = variance * (count / (count - 1).clamp(min=1))
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum or 0.0)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum or 0.0)
        return output  # type: ignore[no-any-return]


def _by_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.view(1, -1, *([1] * (like.dim() - 2)))


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
    ) -> tuple[torch.Tensor, ...]:
        # Moments of each rank's batch, combined as in T. Chan et al., "Algorithms for computing the sample variance",
        # 1983.
        exact = torch.float64 if input.dtype == torch.float64 else torch.float32
        x = input.to(exact)
        dims = [0, *range(2, input.dim())]
        count = x.numel() // max(x.shape[1], 1)
        own_mean = x.sum(dims) / max(count, 1)
        own_squares = (x - _by_channel(own_mean, x)).square().sum(dims)
        sent = torch.cat([own_mean, own_squares, own_mean.new_tensor([float(count)])])
        moments = allgather(sent[None])
        means, squares = moments[:, :-1].chunk(2, dim=1)
        counts = moments[:, -1:]
        total = counts.sum()
        mean = (means * counts).sum(0) / total
        variance = (squares.sum(0) + ((means - mean).square() * counts).sum(0)) / total
        scale = (variance + eps).rsqrt()

        normal = (x - _by_channel(mean, x)) * _by_channel(scale, x)
        output = normal
        if weight is not None:
            output = output * _by_channel(weight.to(exact), x)
        if bias is not None:
            output = output + _by_channel(bias.to(exact), x)
        ctx.save_for_backward(normal, weight, scale, total)
        ctx.dims = dims
        ctx.mark_non_differentiable(mean, variance, total)
        return mean, variance, total, output.to(input.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        normal, weight, scale, total = ctx.saved_tensors
        grad = grads[3].to(normal.dtype)
        own_grad = grad.sum(ctx.dims)
        own_product = (grad * normal).sum(ctx.dims)
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            sums = allreduce(torch.cat([own_grad, own_product]), op=Sum)
            mean_grad, mean_product = (sums / total).chunk(2)
            factor = scale if weight is None else scale * weight.to(scale.dtype)
            inner = grad - _by_channel(mean_grad, grad) - normal * _by_channel(mean_product, grad)
            grad_input = (inner * _by_channel(factor, grad)).to(grads[3].dtype)
        if weight is not None:
            grad_weight, grad_bias = own_product.to(weight.dtype), own_grad.to(weight.dtype)
        return grad_input, grad_weight, grad_bias if ctx.needs_input_grad[2] else None, None
