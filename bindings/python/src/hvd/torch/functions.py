"""Collectives on whole models, optimizers and objects."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, Callable, Optional, Union

import torch

from hvd.core import state
from hvd.core.handles import synchronize_all
from hvd.core.objects import allgather_object, broadcast_object  # noqa: F401
from hvd.core.process_sets import ProcessSet, global_process_set
from hvd.exceptions import HorovodInternalError
from hvd.torch.adapter import DTYPES, OPS

Parameters = Union[dict[str, torch.Tensor], Iterable[Union[torch.Tensor, tuple[Optional[str], torch.Tensor]]]]
Named = list[tuple[Optional[str], torch.Tensor]]


def broadcast_parameters(
    params: Parameters, root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Copies the root's values to all ranks, in place: of ``model.state_dict()``, ``model.named_parameters()`` or an
    iterable of tensors.

    Names and shapes must be the same on all ranks. For a dictionary, values that are not tensors are ignored, and keys
    are converted to text. Elements of expanded tensors (``x.expand(...)``) that share memory are written once. Raises
    ValueError if ``params`` is neither a dictionary nor an iterable of tensors. If a tensor on one rank cannot be sent,
    or its elements share memory differently than on other ranks, all ranks raise before anything is sent: that rank
    ValueError, the others HorovodInternalError with its reason.
    """
    if isinstance(params, torch.nn.Module):  # some are iterable, and yield modules
        raise ValueError(f"invalid params of type: {type(params)}; pass model.state_dict()")
    named: Named
    if isinstance(params, dict):
        # Sorted as text, because keys of different types have no order.
        named = sorted(((str(key), p) for key, p in params.items() if isinstance(p, torch.Tensor)), key=itemgetter(0))
    elif isinstance(params, Iterable) and not isinstance(params, (str, torch.Tensor)):
        named = [p if isinstance(p, tuple) else (None, p) for p in params]
        for _, p in named:
            if not isinstance(p, torch.Tensor):
                raise ValueError(f"invalid params: a {type(p).__name__} among them; pass tensors")
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    _broadcast(named, root_rank, process_set)


def _broadcast(named: Named, root_rank: int, process_set: ProcessSet, problem: Exception | None = None) -> None:
    """Broadcasts all tensors at once; those that are not contiguous go through a copy. Raises on all ranks, before
    anything is sent, if one of them has a ``problem`` or a tensor that cannot be sent or written.
    """
    tensors = [tensor.detach() for _, tensor in named]
    whole: list[torch.Tensor] = []
    shared: dict[str, tuple[int, ...]] = {}  # strides of tensors whose elements may share memory
    for i, tensor in enumerate(tensors):
        name = named[i][0] or f"tensor {i}"
        try:
            whole.append(tensor.contiguous() if tensor.layout is torch.strided else tensor)
            OPS.adapter.describe(whole[-1], True)
            if _may_overlap(tensor):
                shared[name] = tensor.stride()
        except (RuntimeError, ValueError) as e:
            problem = problem or ValueError(f"hvd: {name!r:.200}: {str(e).removeprefix('hvd: ')}")
    _agree(problem, shared, process_set)
    begun, refused = [], None
    for (given, _), sent in zip(named, whole):
        try:
            begun.append(OPS.broadcast(sent, sent, root_rank, given, process_set, wake=False))
        except Exception as e:
            refused = refused or e
    synchronize_all(begun, refused)
    for tensor, sent in zip(tensors, whole):
        if sent is not tensor:
            _write(tensor, sent)


def _agree(problem: Exception | None, shared: dict[str, tuple[int, ...]], process_set: ProcessSet) -> None:
    """Raises on all ranks if one has a problem, or if their tensors share memory in different ways. Collective."""
    mine = None if problem is None else str(problem).removeprefix("hvd: "), shared
    everyone = allgather_object(mine, "broadcast_parameters", process_set)
    if problem is not None:
        raise problem
    ranks = process_set.ranks or []
    for rank, (theirs, _) in zip(ranks, everyone):
        if theirs is not None:
            raise HorovodInternalError(f"hvd: nothing was broadcast, because of rank {rank}: {theirs}", "mismatch", rank)
    first = everyone[0][1]
    for rank, (_, theirs) in zip(ranks, everyone):
        for name in sorted({*first, *theirs}):
            if first.get(name) != theirs.get(name):
                raise HorovodInternalError(
                    f"hvd: nothing was broadcast: elements of {name!r:.200} share memory in different ways, on rank"
                    f" {ranks[0]} with strides {first.get(name)} and on rank {rank} with {theirs.get(name)} (None: they"
                    " do not); pass x.contiguous(), or expand it on all ranks",
                    "mismatch", rank,
                )


def _may_overlap(tensor: torch.Tensor) -> bool:
    """Whether elements may share memory. False is certain."""
    last = 0  # the furthest element of the dimensions so far
    for stride, length in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride()) if n > 1):
        if stride <= last:
            return True
        last += stride * (length - 1)
    return False


def _write(tensor: torch.Tensor, whole: torch.Tensor) -> None:
    """Copies ``whole``. Repeated elements of an expanded tensor are written once, because PyTorch does not write to
    such tensors.
    """
    for dim, (length, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if stride == 0 and length > 1:
            tensor, whole = tensor.narrow(dim, 0, 1), whole.narrow(dim, 0, 1)
    tensor.copy_(whole)


class _Tensor:
    """A placeholder for a tensor in the structure of an optimizer's state."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.is_cuda = tensor.shape, tensor.dtype, tensor.is_cuda
        self.stride = torch.empty_like(tensor, device="meta").stride()

    def empty(self, gpu: torch.device) -> torch.Tensor:
        """A new tensor, on the host or on ``gpu``, like the root's."""
        device = gpu if self.is_cuda else torch.device("cpu")
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


def _map(value: Any, function: Callable[[Any], Any]) -> Any:
    """A copy of ``value`` with ``function`` applied to the elements of its dictionaries, lists and tuples."""
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update({key: _map(item, function) for key, item in value.items()})
        return made
    if type(value) in (list, tuple):
        return type(value)(_map(item, function) for item in value)
    return function(value)


def _take_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The structure of ``value`` without its tensors, which are appended to ``tensors``. Tensors of other classes,
    dtypes and layouts stay and are pickled with the structure.
    """

    def take(leaf: Any) -> Any:
        plain = type(leaf) is torch.Tensor and leaf.layout is torch.strided and leaf.dtype in DTYPES
        if not plain or not (leaf.is_cpu or leaf.is_cuda) or leaf.is_conj() or leaf.is_neg():
            return leaf
        tensors.append(leaf.contiguous())
        return _Tensor(leaf)

    return _map(value, take)


def _put_tensors(value: Any, tensors: list[torch.Tensor], gpu: torch.device) -> Any:
    """The opposite of ``_take_tensors``; new tensors are appended to ``tensors``."""

    def put(leaf: Any) -> Any:
        if isinstance(leaf, _Tensor):
            tensors.append(leaf.empty(gpu))
            return tensors[-1]
        return leaf.to(gpu) if isinstance(leaf, torch.Tensor) and leaf.is_cuda else leaf

    return _map(value, put)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _gpu_of(optimizer: torch.optim.Optimizer) -> torch.device:
    """The GPU of the optimizer's parameters on this rank; the current GPU if they are on none."""
    return next((p.device for p in _parameters(optimizer) if p.is_cuda), torch.device("cuda"))


def _sizes(optimizer: torch.optim.Optimizer) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Copies the root's state of an optimizer to all ranks, bit for bit: options such as the learning rate, and
    momenta.

    The optimizers must have the same parameters in the same groups. Tensors keep their dtype on the root, even if
    ``load_state_dict`` would cast them to their parameter's; GPU tensors go to this rank's GPU. Values are stored into
    the existing groups, and into existing tensors among their options, so that schedulers and other users of these see
    the root's values. If an optimizer has no state yet, its missing gradients become zero, as with Horovod's function.
    Raises ValueError for LBFGS. If a rank has different groups, or cannot load the state, all ranks raise before
    tensors are sent: that rank ValueError, the others HorovodInternalError with its reason. ``model`` is accepted and
    ignored.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    _zero_gradients(optimizer)
    mine = optimizer_state(optimizer)  # on all ranks, so that all notice a failure
    tensors: list[torch.Tensor] = []
    root = state.rank() == root_rank
    structure = (_sizes(optimizer), *_take_tensors(mine, tensors)) if root else None
    structure = broadcast_object(structure, root_rank, "broadcast_optimizer_state", process_set)
    sizes, *received = structure
    problem: Exception | None = None
    if not root:
        try:
            if sizes != _sizes(optimizer):
                raise ValueError(
                    f"hvd: this optimizer has groups of {_sizes(optimizer)} parameters, and that of rank {root_rank},"
                    f" the root, of {sizes}; make the same groups on all ranks"
                )
            received = _put_tensors(received, tensors, _gpu_of(optimizer))
        except (RuntimeError, ValueError) as e:
            problem, tensors = e, []
    _broadcast([(f"optimizer_state.{i}", t) for i, t in enumerate(tensors)], root_rank, process_set, problem)
    if not root:
        load_optimizer_state(optimizer, *received)


def _zero_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Sets missing gradients of an optimizer without state to zero, because programs scale or clip them next."""
    if optimizer.state:
        return
    for p in _parameters(optimizer):
        if p.requires_grad and p.grad is None:
            zeros = torch.zeros_like(p)
            p.grad = zeros.to_sparse(1) if isinstance(optimizer, torch.optim.SparseAdam) else zeros


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], list[int]]:
    """``optimizer.state_dict()``, and the numbers of the parameters whose state in it is the optimizer's own, unchanged
    by its class or a hook. Copied together, both serve ``load_optimizer_state``.
    """
    saved = optimizer.state_dict()
    of_parameters = saved.get("state")
    if not isinstance(of_parameters, dict):
        return saved, []
    held = enumerate(_parameters(optimizer))
    return saved, [i for i, p in held if p in optimizer.state and of_parameters.get(i) is optimizer.state[p]]


def load_optimizer_state(optimizer: torch.optim.Optimizer, saved: dict[str, Any], as_held: list[int]) -> None:
    """Like ``load_state_dict``, but keeps the tensors' dtypes instead of casting them to their parameters', and keeps
    the groups' dictionaries instead of replacing them.
    """
    groups = optimizer.param_groups
    optimizer.load_state_dict(saved)
    for group, loaded in zip(groups, optimizer.param_groups):
        for name, value in loaded.items():
            held = group.get(name)
            if isinstance(held, torch.Tensor) and isinstance(value, torch.Tensor) and (
                (held.shape, held.dtype) == (value.shape, value.dtype)
            ):
                with torch.no_grad():
                    held.copy_(value)
            else:
                group[name] = value
    optimizer.param_groups = groups
    parameters = _parameters(optimizer)
    for i in as_held:
        optimizer.state[parameters[i]] = saved["state"][i]
