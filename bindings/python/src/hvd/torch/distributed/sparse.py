"""The sum of sparse tensors, such as gradients of embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvd.torch.distributed.flat import store
from hvd.torch.distributed.reductions import AVERAGE, adds, name_of, number_of

Tensor = torch.Tensor


def allreduce(tensor: Tensor, op: Any, size: int, gather: Callable[[Sequence[Tensor], Tensor], Any]) -> None:
    """Each rank uses ``gather`` for the indices and values of all ranks, which differ in number, and sums them in
    place.
    """
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"hvd: all_reduce: the tensor's layout is {tensor.layout}; allowed: strided and sparse_coo")
    if not adds(op):
        raise ValueError(f"hvd: all_reduce: sparse tensors can be summed, and {name_of(op)} was asked for")
    mine = tensor.coalesce()
    counts = [torch.empty(1, dtype=torch.int64, device="cpu") for _ in range(size)]
    gather(counts, torch.tensor([mine._nnz()], device="cpu"))
    indices = [torch.empty((mine.sparse_dim(), int(n)), dtype=torch.int64, device="cpu") for n in counts]
    values = [torch.empty((int(n), *mine.values().shape[1:]), dtype=mine.dtype, device="cpu") for n in counts]
    gather(indices, mine.indices())
    gather(values, mine.values())
    with torch.autocast("cpu", enabled=False):  # with autocast, `cat` accepts only some dtypes
        joined = torch.cat(indices, 1), torch.cat(values)
    total = torch.sparse_coo_tensor(*joined, tensor.shape, device="cpu").coalesce()
    number, factor = number_of(op)
    if number == AVERAGE:
        whole = not (tensor.is_floating_point() or tensor.is_complex())
        total = torch.div(total, size, rounding_mode="trunc" if whole else None)
    elif factor != 1:
        total = total * factor
    store(total, tensor)
