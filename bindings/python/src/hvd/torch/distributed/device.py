"""Collectives on GPU tensors in a process group, by NCCL.

As with other CUDA backends, the host waits neither for a GPU nor for other ranks: a collective reads its tensors after
the work queued on the current stream when it is called, runs on a stream of the group, and ``Work.wait`` makes the
stream current at that time wait for the result. Each rank uses one GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvd import _core
from hvd.core.adapter import Stream
from hvd.core.native import interruptible
from hvd.exceptions import HorovodInternalError
from hvd.torch.adapter import OPS, current_stream
from hvd.torch.distributed import flat, registry
from hvd.torch.distributed.device_work import DEVICE_WORK, DeviceWork
from hvd.torch.distributed.operations import Operations
from hvd.torch.distributed.reductions import number_of

Tensor = torch.Tensor
Copy = Callable[[], None]

_ALLREDUCE, _REDUCE, _REDUCE_SCATTER, _ALLGATHER, _BROADCAST, _ALLTOALL, _GATHER, _SCATTER = (
    _core.operations[name]
    for name in ("allreduce", "reduce", "reduce_scatter", "allgather", "broadcast", "alltoall", "gather", "scatter")
)
_BYTES = _core.dtypes["uint8"]
_POSSIBLE = 5  # the first of the reductions, by their numbers
_SHORT = [getattr(torch, name) for name in ("int16", "uint16") if hasattr(torch, name)]


def _reduction(what: str, op: Any, dtype: torch.dtype) -> tuple[int, float]:
    """The operation's number, and the factor for each input."""
    number, factor = number_of(op)
    if number >= _POSSIBLE:
        raise ValueError(
            f"hvd: {what}: {op} is not possible on a GPU; allowed: SUM, AVG, MIN, MAX, PRODUCT and PREMUL_SUM, and any"
            " other on a copy of the CPU: pass x.cpu()"
        )
    if dtype in _SHORT:
        raise ValueError(f"hvd: {what}: NCCL cannot reduce tensors of {dtype}; pass x.int(), or x.cpu()")
    return number, factor


def _place(what: str, *tensors: Tensor) -> Stream:
    """The GPU of the tensors, and its current stream."""
    for t in tensors:
        if not t.is_cuda or t.device != tensors[0].device:
            raise ValueError(
                f"hvd: {what}: a tensor on {tensors[0].device} and one on {t.device}; allowed: all on one GPU"
            )
    place = current_stream(tensors[0])
    assert place is not None
    return place


class _Call:
    """The collectives of one call on tensors of one GPU, which NCCL launches together. They are added one by one."""

    def __init__(self, what: str, place: Stream) -> None:
        self.what, self.place = what, place
        self.described: list[_core.Collective] = []
        self.keep: list[Tensor] = []
        self.copies: list[Copy] = []  # to the program's tensors, afterwards

    def add(
        self, kind: int, source: Tensor | None, target: Tensor | None, count: int, dtype: int = _BYTES, op: int = 0,
        factor: float = 1.0, root: int = 0, send: Sequence[int] | None = None, recv: Sequence[int] | None = None,
    ) -> None:
        """Arguments as those of ``_core.Group.run``."""
        addresses = (0 if t is None else t.data_ptr() for t in (source, target))
        self.described.append((kind, *addresses, count, dtype, op, factor, root, send, recv))  # type: ignore[arg-type]
        self.keep += [t for t in (source, target) if t is not None]

    def then(self, copy: Copy | None) -> None:
        if copy is not None:
            self.copies.append(copy)


class Device:
    """The collectives of a group on its GPUs. ``Collectives`` has checked the arguments. They return None if they are
    not ``asynchronous``.
    """

    def __init__(self, group: Operations) -> None:
        self._group = group
        self._gpus: _core.DeviceGroup | None = None
        self._index = -1  # of this rank's GPU, once the ranks are connected
        self._stream: Any = None  # on which collectives run

    def _connect(self, what: str, index: int) -> _core.DeviceGroup:
        """Connects the ranks at the first collective, which has the same position on all ranks. If one rank cannot, for
        instance without a driver, all ranks raise an error, and the next collective tries again.
        """
        group = self._group
        if self._gpus is None:
            self._gpus = _core.DeviceGroup(group._group, group._nccl, group._checks)
        gpus = self._gpus
        if self._index < 0:
            interruptible(lambda: gpus.connect(index, group._seconds))
            self._index = index
            make: Any = torch.cuda.ExternalStream  # has no types
            self._stream = make(gpus.stream, device=index)
        if index != self._index:
            raise ValueError(
                f"hvd: {what}: the tensor is on device {index}; allowed: device {self._index}, as in the group's first"
                " collective"
            )
        return gpus

    def _run(self, call: _Call, results: Sequence[Any], asynchronous: bool) -> DeviceWork | None:
        group, what = self._group, call.what
        index, stream = call.place
        group._refuse_closed()
        keep = [OPS.adapter.hold(t, False) for t in call.keep], call.copies
        try:
            gpus = self._gpus if self._gpus is not None and index == self._index else self._connect(what, index)
            pending = gpus.queue(what, call.described, stream, group._seconds, keep, bool(call.copies))
            if call.copies:
                try:
                    with torch.cuda.stream(self._stream):
                        for copy in call.copies:
                            copy()
                finally:
                    pending.complete()
            group._sequence += 1
            if not asynchronous:
                pending.make_stream_wait(index, stream)
                return None
        except HorovodInternalError as e:
            raise group.problem(e, what) from e
        work = DEVICE_WORK(group.problem, what, [pending], results, index)
        if registry.is_used():
            registry.add(work, results)
        if group._coalesced is not None:
            group._coalesced.append(work)
        return work

    def settle(self, what: str) -> None:
        """Waits until the work that is queued has ended. Raises its error, also an earlier one."""
        if self._gpus is not None:
            try:
                self._gpus.settle()
            except HorovodInternalError as e:
                raise self._group.problem(e, what) from e

    def abort(self) -> None:
        """Ends collectives in flight, here and on the other ranks."""
        if self._gpus is not None:
            self._gpus.abort()

    def close(self, limit: float) -> None:
        """Leaves after all collectives in flight. Waits at most ``limit`` seconds for them."""
        if self._gpus is not None:
            self._gpus.close(limit)

    def forget(self) -> None:
        """Forgets NCCL, in a forked child."""
        if self._gpus is not None:
            self._gpus.forget()

    # --- The collectives ----------------------------------------------------------------------------------------------

    def all_reduce(self, what: str, tensors: Sequence[Tensor], op: Any, asynchronous: bool) -> DeviceWork | None:
        """The tensors have the same dtype."""
        call = _Call(what, _place(what, *tensors))
        how = _reduction(what, op, tensors[0].dtype)
        self._group._check_nan(what, tensors)
        for tensor in tensors:
            memory, dtype, count = flat.as_numbers(tensor, what, op)
            call.add(_ALLREDUCE, memory, memory, count, dtype, *how)
            call.then(flat.copying_back(memory, tensor))
        return self._run(call, tuple(tensors), asynchronous)

    def reduce(self, tensor: Tensor, root: int, op: Any, asynchronous: bool) -> DeviceWork | None:
        call = _Call("reduce", _place("reduce", tensor))
        how = _reduction("reduce", op, tensor.dtype)
        self._group._check_nan("reduce", [tensor])
        memory, dtype, count = flat.as_numbers(tensor, "reduce", op)
        call.add(_REDUCE, memory, memory, count, dtype, *how, root)
        if self._group._number == root:
            call.then(flat.copying_back(memory, tensor))
        return self._run(call, (tensor,), asynchronous)

    def broadcast(self, tensor: Tensor, root: int, asynchronous: bool) -> DeviceWork | None:
        call = _Call("broadcast", _place("broadcast", tensor))
        memory = flat.packed(tensor, "broadcast")
        if self._group._number == root:
            self._group._check_nan("broadcast", [memory])
        else:
            call.then(flat.copying_back(memory, tensor))
        call.add(_BROADCAST, memory, memory, memory.nbytes, root=root)
        return self._run(call, (tensor,), asynchronous)

    def all_gather(
        self, what: str, lists: Sequence[Sequence[Tensor]], sources: Sequence[Tensor], results: Sequence[Any],
        asynchronous: bool,
    ) -> DeviceWork | None:
        """``lists[i][r]`` gets ``sources[i]`` of rank r."""
        call = _Call(what, _place(what, *sources, *[t for targets in lists for t in targets]))
        self._group._check_nan(what, sources)
        for targets, source in zip(lists, sources):
            memory, copy = flat.gathering(targets, source, self._group._number)
            sizes = [t.nbytes for t in targets]
            call.add(_ALLGATHER, source, memory, source.nbytes, recv=sizes if len(set(sizes)) > 1 else None)
            call.then(copy)
        return self._run(call, results, asynchronous)

    def all_gather_single(
        self, what: str, outputs: Sequence[Tensor], sources: Sequence[Tensor], asynchronous: bool
    ) -> DeviceWork | None:
        """``outputs[i]`` gets ``sources[i]`` of all ranks."""
        call = _Call(what, _place(what, *sources, *outputs))
        self._group._check_nan(what, sources)
        for output, source in zip(outputs, sources):
            call.add(_ALLGATHER, source, output, source.nbytes)
        return self._run(call, tuple(outputs), asynchronous)

    def reduce_scatter(
        self, what: str, outputs: Sequence[Tensor], sources: Sequence[Tensor], op: Any, asynchronous: bool,
        lengths: Sequence[int] | None = None,
    ) -> DeviceWork | None:
        """Each rank gets an equal part of each reduced source, or ``lengths`` elements. All have the same dtype."""
        call = _Call(what, _place(what, *sources, *outputs))
        how = _reduction(what, op, sources[0].dtype)
        self._group._check_nan(what, sources)
        for output, source in zip(outputs, sources):
            memory, dtype, count = flat.as_numbers(source, what, op)
            target = flat.packed(output, what)
            parts = count // max(source.numel(), 1)
            send = None if lengths is None else [n * parts for n in lengths]
            call.add(_REDUCE_SCATTER, memory, target, count // self._group._count, dtype, *how, send=send)
            call.then(flat.copying_back(target, output))
        return self._run(call, tuple(outputs), asynchronous)

    def all_to_all(
        self, what: str, source: Tensor, send: Sequence[int], targets: Sequence[Tensor], receive: Sequence[int],
        results: Sequence[Any], asynchronous: bool, uniform: bool = False,
    ) -> DeviceWork | None:
        """``send``, ``receive``: bytes to and from each rank. Received bytes fill the targets in order. ``uniform``: the
        bytes are the same for all pairs of ranks.
        """
        call = _Call(what, _place(what, source, *targets))
        self._group._check_nan(what, [source])
        memory, copy = flat.gathering(targets, source)
        if uniform:
            call.add(_ALLTOALL, source, memory, send[0])
        else:
            call.add(_ALLTOALL, source, memory, 0, send=send, recv=receive)
        call.then(copy)
        return self._run(call, results, asynchronous)

    def gather(self, outputs: Any, tensor: Tensor, root: int, asynchronous: bool) -> DeviceWork | None:
        """See torch.distributed.gather."""
        group = self._group
        results: list[Tensor] = []
        if group._number == root:
            results = list(flat.only_list(outputs))
            group._check_list("gather", results, tensor, root, True)
        call = _Call("gather", _place("gather", tensor, *results))
        group._check_nan("gather", [tensor])
        memory, copy = flat.gathering(results, tensor, root) if results else (None, None)
        call.add(_GATHER, tensor, memory, tensor.nbytes, root=root)
        call.then(copy)
        return self._run(call, (results,), asynchronous)

    def scatter(self, output: Tensor, inputs: Any, root: int, asynchronous: bool) -> DeviceWork | None:
        """See torch.distributed.scatter."""
        group = self._group
        sources: list[Tensor] = []
        if group._number == root:
            sources = list(flat.only_list(inputs))
            group._check_list("scatter", sources, output, root, True)
        call = _Call("scatter", _place("scatter", output, *sources))
        source = flat.joined(sources, output, root) if sources else None
        group._check_nan("scatter", [] if source is None else [source])
        target = flat.packed(output, "scatter")
        call.add(_SCATTER, source, target, target.nbytes, root=root)
        call.then(flat.copying_back(target, output))
        return self._run(call, (output,), asynchronous)
