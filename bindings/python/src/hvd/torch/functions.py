"""Collectives on whole models, optimizers and objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional, Union

import torch

from hvd.core import state
from hvd.core.handles import synchronize_all
from hvd.core.objects import allgather_object, broadcast_object  # noqa: F401
from hvd.core.process_sets import ProcessSet, global_process_set
from hvd.torch.adapter import OPS

Parameters = Union[dict[str, torch.Tensor], Iterable[Union[torch.Tensor, tuple[Optional[str], torch.Tensor]]]]


def broadcast_parameters(
    params: Parameters, root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Gives all ranks the root's values, in place: of ``model.state_dict()``, ``model.named_parameters()`` or some
    tensors.

    Names and shapes are the same on all ranks; values of a dictionary that are no tensors are left alone. Raises
    ValueError for anything but a dictionary or an iterable of tensors.
    """
    if isinstance(params, torch.nn.Module):  # some are iterable, and yield modules
        raise ValueError(f"invalid params of type: {type(params)}; pass model.state_dict()")
    if isinstance(params, dict):
        named: list[tuple[str | None, torch.Tensor]] = sorted(params.items())
        named = [(name, p) for name, p in named if isinstance(p, torch.Tensor)]
    elif isinstance(params, Iterable) and not isinstance(params, (str, torch.Tensor)):
        named = [p if isinstance(p, tuple) else (None, p) for p in params]
        for _, p in named:
            if not isinstance(p, torch.Tensor):
                raise ValueError(f"invalid params: a {type(p).__name__} among them; pass tensors")
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    _broadcast(named, root_rank, process_set)


def _broadcast(named: list[tuple[str | None, torch.Tensor]], root_rank: int, process_set: ProcessSet) -> None:
    """Broadcasts all at once; tensors that are not contiguous go through a copy."""
    begun = []
    refused: Exception | None = None
    for name, tensor in named:
        tensor = tensor.detach()
        whole = tensor.contiguous()
        try:
            begun.append((OPS.broadcast(whole, whole, root_rank, name, process_set, wake=False), tensor, whole))
        except Exception as e:  # other ranks wait for the rest
            refused = refused or e
    synchronize_all([handle for handle, _, _ in begun], refused)
    for _, tensor, whole in begun:
        if whole is not tensor:
            tensor.copy_(whole)


class _Tensor:
    """A placeholder for a tensor in the structure of an optimizer's state."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.is_cuda = tensor.shape, tensor.dtype, tensor.is_cuda


def _take_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The structure of ``value`` without its tensors, which are appended to ``tensors``."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Tensor(value)
    if isinstance(value, dict):
        return {key: _take_tensors(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_take_tensors(item, tensors) for item in value)
    return value


def _put_tensors(value: Any, tensors: list[torch.Tensor], gpu: torch.device) -> Any:
    """The opposite of ``_take_tensors``; new tensors, which are appended to ``tensors``, are on the host or on ``gpu``,
    as the root's are.
    """
    if isinstance(value, _Tensor):
        tensors.append(torch.empty(value.shape, dtype=value.dtype, device=gpu if value.is_cuda else "cpu"))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _put_tensors(item, tensors, gpu) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put_tensors(item, tensors, gpu) for item in value)
    return value


def _gpu_of(optimizer: torch.optim.Optimizer) -> torch.device:
    """The GPU of its parameters on this rank; the current one, if they are on none."""
    of_parameters = (p.device for group in optimizer.param_groups for p in group["params"] if p.is_cuda)
    return next(of_parameters, torch.device("cuda"))


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives all ranks the root's state of an optimizer: options such as the learning rate, and momenta.

    The optimizers have the same parameters in the same groups. Values are stored into the existing groups, and into
    existing tensors among their options, so that schedulers and other holders of these see the root's values. If an
    optimizer has no state yet, its missing gradients become zero, as with Horovod's function. Raises ValueError for
    LBFGS. ``model`` is ignored; scripts pass it.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    _zero_gradients(optimizer)
    tensors: list[torch.Tensor] = []
    root = state.rank() == root_rank
    structure = _take_tensors(optimizer.state_dict(), tensors) if root else None
    structure = broadcast_object(structure, root_rank, "broadcast_optimizer_state", process_set)
    received = None if root else _put_tensors(structure, tensors, _gpu_of(optimizer))
    _broadcast([(f"optimizer_state.{i}", t) for i, t in enumerate(tensors)], root_rank, process_set)
    if received is not None:
        _load(optimizer, received)


def _zero_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Makes missing gradients of an optimizer without state zero, because programs scale or clip them next."""
    if optimizer.state:
        return
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        if p.requires_grad and p.grad is None:
            zeros = torch.zeros_like(p)
            p.grad = zeros.to_sparse(1) if isinstance(optimizer, torch.optim.SparseAdam) else zeros


def _load(optimizer: torch.optim.Optimizer, state: Any) -> None:
    """As load_state_dict, which alone would replace the dictionaries of the groups; this one keeps them."""
    groups = optimizer.param_groups
    optimizer.load_state_dict(state)
    for group, loaded in zip(groups, optimizer.param_groups):
        for name, value in loaded.items():
            held = group.get(name)
            if isinstance(held, torch.Tensor) and isinstance(value, torch.Tensor) and held.shape == value.shape:
                with torch.no_grad():
                    held.copy_(value)
            else:
                group[name] = value
    optimizer.param_groups = groups
