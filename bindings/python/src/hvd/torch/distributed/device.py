"""Collectives on GPU tensors in a process group, run by an engine of the same ranks, which loads NCCL.

As with other CUDA backends, the host does not wait for a GPU: a tensor is read after work queued on the current stream
when the collective is called, and ``Work.wait`` makes the stream current at that time wait for the result. But the host
does wait for the other ranks to call the collective. Each rank uses one GPU.
"""

from __future__ import annotations

import ctypes
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from hvd import _core
from hvd.core.adapter import Stream
from hvd.core.native import interruptible
from hvd.core.reduce_op import Average, Max, Min, Product, ReduceOp, Sum
from hvd.exceptions import HorovodInternalError
from hvd.torch.adapter import OPS, current_stream
from hvd.torch.distributed import flat, registry
from hvd.torch.distributed.device_work import DEVICE_WORK, DeviceWork
from hvd.torch.distributed.operations import Operations
from hvd.torch.distributed.reductions import number_of

Tensor = torch.Tensor

_ALLREDUCE, _REDUCE_SCATTER, _BROADCAST, _ALLTOALL, _ALLGATHER = (
    _core.operations[name] for name in ("allreduce", "reduce_scatter", "broadcast", "alltoall", "allgather")
)
_BYTES = _core.dtypes["uint8"]
_OPS = (Sum, Average, Product, Min, Max)  # indexed by the numbers of `reductions`
_OF_TRUTH = {Sum: Max, Product: Min}
_SHORT = [getattr(torch, name) for name in ("int16", "uint16") if hasattr(torch, name)]
_LONGEST = 512  # bytes of a text that ranks exchange


def _reduction(what: str, op: Any, dtype: torch.dtype) -> tuple[ReduceOp, float]:
    """The engine's operation, and the factor for each input."""
    number, factor = number_of(op)
    if number >= len(_OPS):
        raise ValueError(
            f"hvd: {what}: {op} is not possible on a GPU; allowed: SUM, AVG, MIN, MAX, PRODUCT and PREMUL_SUM, and any"
            " other on a copy of the CPU: pass x.cpu()"
        )
    if dtype in _SHORT:
        raise ValueError(f"hvd: {what}: NCCL cannot reduce tensors of {dtype}; pass x.int(), or x.cpu()")
    found = _OPS[number]
    return (_OF_TRUTH.get(found, found) if dtype is torch.bool else found), factor


def _handle_of(job: _core.Job, call: Any) -> _core.Handle:
    begun: Any = SimpleNamespace()
    job.submit(begun, *call)
    return begun.handle  # type: ignore[no-any-return]


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


def _all_of(functions: Sequence[Callable[[], None]]) -> Callable[[], None] | None:
    """A function that calls them all; None for none."""

    def call() -> None:
        for one in functions:
            one()

    return call if functions else None


class Device:
    """The collectives of a group on its GPUs. ``Collectives`` has checked the arguments. They return None if they are
    not ``asynchronous``.
    """

    def __init__(self, group: Operations) -> None:
        self.group = group
        self._job: _core.Job | None = None
        self._ended = ""  # why no collective is possible any more
        self._number = 0  # of the next collective
        self._in_flight: deque[_core.Handle] = deque()

    def problem(self, error: HorovodInternalError, what: str) -> Exception:
        """The exception for a failed collective."""
        return self.group.problem(error, what)

    def out_of_time(self, what: str) -> Exception:
        """Ends the engine, because not all ranks have called a collective and so none can follow. Returns the error."""
        if not self._ended:
            self._ended = f"Timed out: not all ranks have called {what} within {self.group._seconds:g} s"
            self.close(0)
        return self.problem(HorovodInternalError(self._ended, "timeout"), what)

    # --- The engine ---------------------------------------------------------------------------------------------------

    def _exchange(self, text: str) -> list[str]:
        """The texts of all ranks. Collective, on the host."""
        group = self.group
        mine = ctypes.create_string_buffer(text.encode()[:_LONGEST], _LONGEST)
        all = ctypes.create_string_buffer(group._count * _LONGEST)
        addresses = ctypes.addressof(mine), ctypes.addressof(all)
        group._group.run(_ALLGATHER, *addresses, _LONGEST, _BYTES, 0, 1.0, 0, None, None, group._seconds, False)
        parts = [all.raw[at : at + _LONGEST] for at in range(0, len(all), _LONGEST)]
        return [part.rstrip(b"\0").decode(errors="replace") for part in parts]

    def _connect(self) -> _core.Job:
        """Connects the ranks. Collective: a group's first collective on GPUs has the same position on all ranks."""
        group = self.group
        if group._count == 1:
            return _core.connect_alone(nccl=group._nccl)
        if len(set(group._group.hosts)) == 1:
            name = f"torch-gpu@{self._exchange(secrets.token_hex(16))[0]}"
            return interruptible(lambda: _core.connect_shm(name, group._number, group._count, nccl=group._nccl))
        from hvd import _core_mpi  # already connects the group

        places = self._exchange("{} of {}".format(*_core_mpi.world()))
        if places != [f"{rank} of {group._count}" for rank in range(group._count)]:
            raise ValueError(
                "hvd: a group on several hosts takes tensors on GPUs only if it has all ranks that MPI has started, in"
                ' their order; make this one with backend "nccl", or pass x.cpu()'
            )
        return _core.connect(_core_mpi.connect(), nccl=group._nccl)

    def _submit(
        self, what: str, kind: int, described: Sequence[_core.Tensor], keep: Sequence[Tensor], asynchronous: bool,
        op: ReduceOp = Sum, factor: float = 1.0, root: int = 0,
    ) -> _core.Handle:
        """Submits an operation on the memory of the tensors in ``keep`` to the engine."""
        self.group._refuse_closed()
        if self._ended:
            raise self.problem(HorovodInternalError(self._ended, "aborted"), what)
        if kind != _ALLTOALL and not all(one[1] for one in described):
            # No elements, and without an address the engine would allocate a result.
            keep = [*keep, torch.empty(1, dtype=torch.uint8, device=keep[0].device)]
            some = keep[-1].data_ptr()
            described = [one if one[1] else (some, some, *one[2:]) for one in described]
        held = [OPS.adapter.hold(t, False) for t in keep]
        name = f"{what}.{self._number}"
        call = (kind, name, described, op, factor, 1.0, -1, root, 0, 0, held, asynchronous, None)
        try:
            handle = self._first(call) if self._job is None else _handle_of(self._job, call)
        except HorovodInternalError as e:
            raise self.problem(e, what) from e
        self._number += 1  # not after an error, which may be this rank's alone
        while self._in_flight and self._in_flight[0].poll():
            self._in_flight.popleft()
        self._in_flight.append(handle)
        return handle

    def settle(self, what: str) -> None:
        """Waits until the work that is queued has ended. Raises its error, also an earlier one."""
        if self._ended:
            raise self.problem(HorovodInternalError(self._ended, "aborted"), what)
        if self._job is not None:
            try:
                self._job.settle()
            except HorovodInternalError as e:
                raise self.problem(e, what) from e

    def _first(self, call: Any) -> _core.Handle:
        """Connects the ranks and submits. If one rank cannot, for instance without a driver, all ranks raise an error:
        nobody waits, and the next collective tries again.
        """
        job = self._connect()
        handle: _core.Handle | None = None
        own: Exception | None = None
        try:
            handle = _handle_of(job, call)
        except Exception as e:
            own = e
        try:
            troubles = [""] if self.group._count == 1 else self._exchange("" if own is None else str(own))
            if own is not None:
                raise own
            for rank, trouble in enumerate(troubles):
                if trouble:
                    text = f"rank {rank} cannot: {trouble.removeprefix('hvd: ')}"
                    raise HorovodInternalError(text, "unsupported", rank)
        except BaseException:
            job.close()
            raise
        assert handle is not None
        self._job = job
        return handle

    def _work(
        self, what: str, handles: Sequence[_core.Handle], results: Sequence[Any], place: Stream, asynchronous: bool,
        finish: Callable[[], None] | None = None,
    ) -> DeviceWork | None:
        group = self.group
        group._sequence += 1
        work = DEVICE_WORK(self, what, handles, results, place, group._seconds, finish)
        if not asynchronous:
            work.wait()
            return None
        if registry.is_used():
            registry.add(work, results)
        if group._coalesced is not None:
            group._coalesced.append(work)
        return work

    def close(self, limit: float) -> None:
        """Ends the engine after all operations in flight. Waits at most ``limit`` seconds for them."""
        job, self._job = self._job, None
        if job is None:
            return
        until = time.monotonic() + limit
        try:
            for one in self._in_flight:
                try:
                    one.wait(max(until - time.monotonic(), 0.0))
                except (HorovodInternalError, TimeoutError):
                    pass
        finally:
            self._in_flight.clear()
            job.close()

    def forget(self) -> None:
        """Forgets the engine, in a forked child."""
        if self._job is not None:
            self._job.forget()

    # --- The collectives ----------------------------------------------------------------------------------------------

    def all_reduce(
        self, what: str, tensors: Sequence[Tensor], op: Any, asynchronous: bool, changes: bool = True
    ) -> DeviceWork | None:
        """The tensors have the same dtype. ``changes``: whether the results are stored in them."""
        place = _place(what, *tensors)
        how = _reduction(what, op, tensors[0].dtype)
        self.group._check_nan(what, tensors)
        described, keep, back = [], [], []
        for tensor in tensors:
            source, number, count = flat.as_numbers(tensor, what, op)
            target = source if changes else torch.empty_like(source)
            described.append((source.data_ptr(), target.data_ptr(), number, (count,), None, *place))
            keep += [source, target]
            back += [one for one in [flat.copying_back(target, tensor)] if changes and one is not None]
        handle = self._submit(what, _ALLREDUCE, described, keep, asynchronous, *how)
        return self._work(what, [handle], tuple(tensors), place, asynchronous, _all_of(back))

    def reduce(self, tensor: Tensor, root: int, op: Any, asynchronous: bool) -> DeviceWork | None:
        # The engine has no reduce: all ranks get the result, all but the root in separate memory.
        return self.all_reduce("reduce", [tensor], op, asynchronous, self.group._number == root)

    def _broadcast(
        self, what: str, root: int, source: int, target: int, size: int, keep: Sequence[Tensor], place: Stream,
        asynchronous: bool,
    ) -> _core.Handle:
        """Broadcasts ``size`` bytes from the address ``source`` to ``target``."""
        described = source, target, _BYTES, (size,), None, *place
        return self._submit(what, _BROADCAST, [described], keep, asynchronous, root=root)

    def broadcast(self, tensor: Tensor, root: int, asynchronous: bool) -> DeviceWork | None:
        what = "broadcast"
        place = _place(what, tensor)
        target = flat.packed(tensor, what)
        if self.group._number == root:
            self.group._check_nan(what, [target])
        address = target.data_ptr()
        handle = self._broadcast(what, root, address, address, target.nbytes, [target], place, asynchronous)
        finish = flat.copying_back(target, tensor) if self.group._number != root else None
        return self._work(what, [handle], (tensor,), place, asynchronous, finish)

    def _all_gather(
        self, what: str, outputs: Sequence[Tensor], sources: Sequence[Tensor], results: Sequence[Any], place: Stream,
        asynchronous: bool, finish: Callable[[], None] | None = None,
    ) -> DeviceWork | None:
        """Gathers each source into its output, all in one call of NCCL."""
        self.group._check_nan(what, sources)
        described = [
            (source.data_ptr(), output.data_ptr(), _BYTES, (source.nbytes,), None, *place)
            for source, output in zip(sources, outputs)
        ]
        handle = self._submit(what, _ALLGATHER, described, [*sources, *outputs], asynchronous)
        return self._work(what, [handle], results, place, asynchronous, finish)

    def all_gather(
        self, what: str, lists: Sequence[Sequence[Tensor]], sources: Sequence[Tensor], results: Sequence[Any],
        asynchronous: bool,
    ) -> DeviceWork | None:
        """``lists[i][r]`` gets ``sources[i]`` of rank r. The tensors of a list have the same size."""
        place = _place(what, *sources, *[t for targets in lists for t in targets])
        gathered = [flat.gathering(targets, source, self.group._number) for targets, source in zip(lists, sources)]
        finish = _all_of([copy for _, copy in gathered if copy is not None])
        outputs = [memory for memory, _ in gathered]
        return self._all_gather(what, outputs, sources, results, place, asynchronous, finish)

    def all_gather_uneven(self, targets: Sequence[Tensor], tensor: Tensor, asynchronous: bool) -> DeviceWork | None:
        """``targets`` differ in size. NCCL has no such call: each rank broadcasts its part."""
        what = "all_gather"
        place = _place(what, tensor, *targets)
        source, packed = flat.packed(tensor, what), [flat.packed(t, what) for t in targets]
        self.group._check_nan(what, [source])
        handles = []
        for root, target in enumerate(packed):
            given = source if root == self.group._number else target
            addresses = given.data_ptr(), target.data_ptr()
            keep = given, target
            handles.append(self._broadcast(what, root, *addresses, target.nbytes, keep, place, asynchronous))
        back = [one for one in map(flat.copying_back, packed, targets) if one is not None]
        return self._work(what, handles, (list(targets),), place, asynchronous, _all_of(back))

    def all_gather_single(
        self, what: str, outputs: Sequence[Tensor], sources: Sequence[Tensor], asynchronous: bool
    ) -> DeviceWork | None:
        """``outputs[i]`` gets ``sources[i]`` of all ranks."""
        return self._all_gather(what, outputs, sources, tuple(outputs), _place(what, *sources, *outputs), asynchronous)

    def reduce_scatter(
        self, what: str, outputs: Sequence[Tensor], sources: Sequence[Tensor], op: Any, asynchronous: bool
    ) -> DeviceWork | None:
        """Each rank gets an equal part of each reduced source, all in one call of NCCL. All have the same dtype."""
        place = _place(what, *sources, *outputs)
        how = _reduction(what, op, sources[0].dtype)
        self.group._check_nan(what, sources)
        described, keep, back = [], [], []
        for output, source in zip(outputs, sources):
            packed, number, count = flat.as_numbers(source, what, op)
            target = flat.packed(output, what)
            if flat.overlap(packed, target):
                packed = packed.clone()
            described.append((packed.data_ptr(), target.data_ptr(), number, (count,), None, *place))
            keep += [packed, target]
            back += [one for one in [flat.copying_back(target, output)] if one is not None]
        handle = self._submit(what, _REDUCE_SCATTER, described, keep, asynchronous, *how)
        return self._work(what, [handle], tuple(outputs), place, asynchronous, _all_of(back))

    def reduce_scatter_uneven(
        self, what: str, output: Tensor, source: Tensor, lengths: Sequence[int], op: Any, asynchronous: bool
    ) -> DeviceWork | None:
        """``lengths``: elements for each rank. The engine supports only equal parts: all ranks get the whole."""
        place = _place(what, source, output)
        packed, number, count = flat.as_numbers(source, what, op)
        target = torch.empty_like(packed)
        described = packed.data_ptr(), target.data_ptr(), number, (count,), None, *place
        how = _reduction(what, op, source.dtype)
        self.group._check_nan(what, [packed])
        handle = self._submit(what, _ALLREDUCE, [described], [packed, target], asynchronous, *how)
        mine = torch.split(target, list(lengths))[self.group._number].view(output.shape)
        return self._work(what, [handle], (output,), place, asynchronous, flat.copying_back(mine, output))

    def _all_to_all(
        self, what: str, source: Tensor | None, send: Sequence[int], targets: Sequence[Tensor], receive: Sequence[int],
        results: Sequence[Any], place: Stream, asynchronous: bool,
    ) -> DeviceWork | None:
        """``send``, ``receive``: bytes to and from each rank. Received bytes fill the targets in order."""
        copy, keep, output = None, [] if source is None else [source], 0
        self.group._check_nan(what, keep)
        if targets:
            memory, copy = flat.gathering(targets, targets[0] if source is None else source)
            keep, output = [*keep, memory], memory.data_ptr()
        given = 0 if source is None else source.data_ptr()
        described = given, output, _BYTES, (sum(send),), send, *place, sum(receive)
        handle = self._submit(what, _ALLTOALL, [described], keep, asynchronous)

        def finish() -> None:
            for rank, (found, expected) in enumerate(zip(handle.received_splits(0), receive)):
                if found != expected:
                    raise HorovodInternalError(f"rank {rank} sends {found} bytes, not {expected}", "mismatch", rank)
            if copy is not None:
                copy()

        return self._work(what, [handle], results, place, asynchronous, finish)

    def all_to_all(
        self, targets: Sequence[Tensor], source: Tensor, send: Sequence[int], asynchronous: bool
    ) -> DeviceWork | None:
        """``source``: the tensors for all ranks, concatenated; ``send``: their sizes in bytes."""
        what = "all_to_all"
        place = _place(what, source, *targets)
        receive = [t.numel() * source.itemsize for t in targets]
        return self._all_to_all(what, source, send, targets, receive, (list(targets),), place, asynchronous)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, send: Sequence[int], receive: Sequence[int], asynchronous: bool
    ) -> DeviceWork | None:
        """``send``, ``receive``: bytes to and from each rank."""
        what = "all_to_all_single"
        place = _place(what, input, output)
        return self._all_to_all(what, input, send, [output], receive, (output,), place, asynchronous)

    def gather(self, outputs: Any, tensor: Tensor, root: int, asynchronous: bool) -> DeviceWork | None:
        """See torch.distributed.gather. The engine has no gather: all ranks send to the root, and nothing to other
        ranks.
        """
        group = self.group
        results: list[Tensor] = []
        if group._number == root:
            results = list(flat.only_list(outputs))
            group._check_list("gather", results, tensor, root, True)
        place = _place("gather", tensor, *results)
        sizes = [tensor.nbytes] * group._count
        send = [size if rank == root else 0 for rank, size in enumerate(sizes)]
        receive = sizes if group._number == root else [0] * len(sizes)
        source = flat.packed(tensor, "gather")
        return self._all_to_all("gather", source, send, results, receive, (results,), place, asynchronous)

    def scatter(self, output: Tensor, inputs: Any, root: int, asynchronous: bool) -> DeviceWork | None:
        """See torch.distributed.scatter, and ``gather``."""
        group = self.group
        sources: list[Tensor] = []
        if group._number == root:
            sources = list(flat.only_list(inputs))
            group._check_list("scatter", sources, output, root, True)
        place = _place("scatter", output, *sources)
        sizes = [output.nbytes] * group._count
        send = sizes if sources else [0] * len(sizes)
        receive = [size if rank == root else 0 for rank, size in enumerate(sizes)]
        source = flat.joined(sources) if sources else None
        return self._all_to_all("scatter", source, send, [output], receive, (output,), place, asynchronous)
