"""Tensors in the form that hvd reads and writes: contiguous memory, in dtypes that it supports."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvd.torch.adapter import DTYPES
from hvd.torch.distributed.reductions import adds, name_of

Tensor = torch.Tensor
_STRIDED = torch.strided


def only(tensors: Any) -> Tensor:
    """The tensor in a list of one."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"hvd: this operation takes one tensor for each rank, and got {len(tensors)}")
    one: Tensor = tensors[0]
    return one


def only_list(lists: Sequence[Sequence[Tensor]]) -> Sequence[Tensor]:
    if len(lists) != 1:
        raise ValueError(f"hvd: this operation takes one list of tensors, and got {len(lists)}")
    return lists[0]


def plain(tensor: Tensor) -> bool:
    """Whether it is on the CPU, and hvd can use its memory directly."""
    if not tensor.is_cpu or tensor.layout is not _STRIDED or not tensor.is_contiguous() or tensor.is_neg():
        return False
    return not (tensor.dtype.is_complex and tensor.is_conj())


def packed(tensor: Tensor, what: str) -> Tensor:
    """The tensor, or a contiguous copy. Raises ValueError for a tensor that is neither on the CPU nor on a GPU."""
    if plain(tensor):
        return tensor
    if not (tensor.is_cpu or tensor.is_cuda):
        raise ValueError(
            f"hvd: {what}: the tensor is on device {tensor.device}; allowed: those of the CPU and of CUDA: pass x.cpu()"
        )
    if tensor.layout is not torch.strided:
        raise ValueError(f"hvd: {what}: the tensor's layout is {tensor.layout}; make it dense")
    return tensor.resolve_conj().resolve_neg().contiguous()


def without_memory(tensor: Tensor) -> int:
    """The address of a tensor without memory in PyTorch: 0. Raises ValueError if the tensor nevertheless has elements.
    """
    if tensor.numel() == 0:
        return 0
    raise ValueError(
        f"hvd: the tensor is a {type(tensor).__name__}, which has no memory; allowed: tensors with data (for dry runs with"
        ' FakeTensorMode use backend "fake")'
    )


def as_numbers(tensor: Tensor, what: str, op: Any, copy: bool = True) -> tuple[Tensor, int, int]:
    """A contiguous tensor for a reduction, the number of its dtype, and its number of elements. ``copy``: make a copy
    unless the tensor is contiguous and of a dtype that hvd reduces.
    """
    number = DTYPES.get(tensor.dtype)
    dense = packed(tensor, what)
    if number is not None:
        return dense, number, dense.numel()
    if tensor.dtype is torch.complex32 and adds(op):
        return dense, DTYPES[torch.float16], 2 * dense.numel()
    raise ValueError(
        f"hvd: {what}: tensors of {tensor.dtype} can be moved, but not reduced by"
        f" {name_of(op)}; convert them, for example with x.float()"
    )


def store(source: Tensor, target: Tensor) -> None:
    """Copies a result to its target, whatever the mode of the waiting thread."""
    # Tensors of inference mode can be written only in that mode, and tensor subclasses have no views in it.
    with torch.inference_mode(target.is_inference()), torch.no_grad():
        target.copy_(source)


def copying_back(source: Tensor, target: Tensor) -> Callable[[], None] | None:
    """A function that stores a result in its target tensor; None if it is already there."""
    if source is target:
        return None

    return functools.partial(store, source, target)


def joined(tensors: Sequence[Tensor], output: Tensor | None = None, own: int = 0) -> Tensor:
    """The elements of all tensors, concatenated. Without a copy if they already lie so, and none of them lies in the
    output; the output may be tensor number ``own``.
    """
    first = tensors[0]
    if _adjacent(tensors):
        all = torch.as_strided(first, (sum(t.numel() for t in tensors),), (1,))
        apart = output is None or not overlap(all, output) or output.data_ptr() == tensors[own].data_ptr()
        return all if apart else all.clone()
    parts = [packed(t, "a list").reshape(-1) for t in tensors]
    with torch.autocast(parts[0].device.type, enabled=False):  # with autocast, `cat` accepts only some dtypes
        return torch.cat(parts)


def gathering(
    targets: Sequence[Tensor], like: Tensor, own: int | None = None
) -> tuple[Tensor, Callable[[], None] | None]:
    """Memory for the elements of all targets, and a function that copies them there; None if it is the targets' own
    memory. That memory is not used if it overlaps the input, ``like``, unless the input is target number ``own``.
    """
    total = sum(t.numel() for t in targets)
    if _adjacent(targets):
        all = torch.as_strided(targets[0], (total,), (1,))
        in_place = own is not None and like.data_ptr() == targets[own].data_ptr()
        if in_place or not overlap(all, like):
            return all, None
    for t in targets:
        if t.device != like.device:
            raise ValueError(f"hvd: a tensor of the output list is on device {t.device}; allowed: {like.device}, as the input")
    made = torch.empty(total, dtype=like.dtype, device=like.device)

    def finish() -> None:
        for target, part in zip(targets, torch.split(made, [t.numel() for t in targets])):
            store(part.view(target.shape), target)

    return made, finish


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two contiguous tensors have common memory."""
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.nbytes and second < first + one.nbytes


def _dense(tensor: Tensor) -> bool:
    """Whether hvd can use its memory directly, on the CPU or on a GPU."""
    return plain(tensor) or (tensor.is_cuda and packed(tensor, "a list") is tensor)


def _adjacent(tensors: Sequence[Tensor]) -> bool:
    first = tensors[0]
    if not _dense(first):
        return False
    storage = first.untyped_storage()._cdata
    expected = first.data_ptr()
    for t in tensors:
        if not _dense(t) or t.data_ptr() != expected or t.dtype != first.dtype or t.untyped_storage()._cdata != storage:
            return False
        expected += t.nbytes
    return first.numel() != 0


def check_output(output: Tensor, input: Tensor, wanted: int, what: str, strided: bool = False) -> None:
    """Raises ValueError for an output that cannot store the result."""
    if output.dtype != input.dtype:
        raise ValueError(f"hvd: {what}: the output is {output.dtype} and the input {input.dtype}")
    if not strided and packed(output, what) is not output:
        raise ValueError(f"hvd: {what}: the output is not contiguous; pass a contiguous tensor and copy from it")
    if output.numel() != wanted:
        raise ValueError(f"hvd: {what}: the output has {output.numel()} elements; allowed: {wanted}")


def check_apart(input: Tensor, output: Tensor, in_place: int | None, what: str) -> None:
    """Raises ValueError if input and output overlap, unless the input begins ``in_place`` bytes after the output."""
    if overlap(input, output) and input.data_ptr() - output.data_ptr() != in_place:
        raise ValueError(
            f"hvd: {what}: input and output overlap; allowed: no common memory, or in place, with the smaller one as"
            " this rank's part of the larger one"
        )


def splits(tensor: Tensor, given: Sequence[int], size: int, name: str) -> list[int]:
    """The number of bytes for each rank."""
    rows = tensor.shape[0] if tensor.dim() else 1
    row = tensor.nbytes // rows if rows else 0
    if not given:
        if rows % size:
            raise ValueError(f"hvd: all_to_all_single: the {name} has {rows} rows; allowed: a multiple of {size}")
        return [rows // size * row] * size
    if len(given) != size or sum(given) != rows or min(given) < 0:
        raise ValueError(
            f"hvd: all_to_all_single: the {name} has {rows} rows and the splits {list(given)}; allowed: one number for"
            f" each of the {size} ranks, {rows} together"
        )
    return [n * row for n in given]
