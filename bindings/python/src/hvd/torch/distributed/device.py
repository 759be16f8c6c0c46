"""Collectives on GPU tensors in a process group, run by an engine of the same ranks, which loads NCCL.

As with other CUDA backends, the host does not wait for a GPU: a tensor is read after work queued on the current stream
when the collective is called, and ``Work.wait`` makes the stream current at that time wait for the result. But the host
does wait for the other ranks to call the collective. Each rank uses one GPU.
"""

from __future__ import annotations

import ctypes
import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import dlpack

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
_LEAST_KEPT, _MOST_KEPT = 64 << 10, 64 << 20  # bytes of results: the least counted for one, and the most kept in all


def _reduction(what: str, op: Any, dtype: torch.dtype) -> tuple[ReduceOp, float]:
    """The engine's operation, and the factor for each input."""
    number, factor = number_of(op)
    if number >= len(_OPS):
        raise ValueError(
            f"hvd: {what}: {op} is not possible on a GPU; allowed: SUM, AVG, MIN, MAX, PRODUCT and PREMUL_SUM, and any"
            " other on a copy of the CPU: pass x.cpu()"
        )
    if dtype in _SHORT:
        raise ValueError(f"hvd: {what}: NCCL reduces no tensors of {dtype}; pass x.int(), or x.cpu()")
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


class Device:
    """The collectives of a group on its GPUs. ``Collectives`` has checked the arguments. They return None if they are
    not ``asynchronous``.
    """

    def __init__(self, group: Operations) -> None:
        self.group = group
        self._job: _core.Job | None = None
        self._ended = ""  # why no collective is possible any more
        self._numbers = itertools.count()
        self._in_flight: deque[_core.Handle] = deque()
        self._kept: deque[tuple[Any, _core.Handle, int]] = deque()  # results that the GPU reads before an event
        self._kept_bytes = 0

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
            return _core.connect_alone()
        if len(set(group._group.hosts)) == 1:
            name = f"torch-gpu@{self._exchange(secrets.token_hex(16))[0]}"
            return interruptible(lambda: _core.connect_shm(name, group._number, group._count))
        from hvd import _core_mpi  # already connects the group

        places = self._exchange("{} of {}".format(*_core_mpi.world()))
        if places != [f"{rank} of {group._count}" for rank in range(group._count)]:
            raise ValueError(
                "hvd: a group on several hosts takes tensors on GPUs only if it has all ranks that MPI has started, in"
                ' their order; make this one with backend "nccl", or pass x.cpu()'
            )
        return _core_mpi.connect_mpi()

    def _submit(
        self, what: str, kind: int, described: _core.Tensor, keep: Sequence[Tensor], asynchronous: bool,
        op: ReduceOp = Sum, factor: float = 1.0, root: int = 0,
    ) -> _core.Handle:
        """Submits an operation on the memory of the tensors in ``keep`` to the engine."""
        self.group._refuse_closed()
        if self._ended:
            raise self.problem(HorovodInternalError(self._ended, "aborted"), what)
        if described[1] == 0 and kind != _ALLTOALL:  # no elements; without an address the engine allocates a result
            keep = [torch.empty(1, dtype=torch.uint8, device=keep[0].device)]
            described = keep[0].data_ptr(), keep[0].data_ptr(), *described[2:]
        held = [OPS.adapter.hold(t, False) for t in keep]
        name = f"{what}.{next(self._numbers)}"
        call = (kind, name, (described,), op, factor, 1.0, -1, root, 0, 0, held, asynchronous, None)
        try:
            handle = self._first(call) if self._job is None else _handle_of(self._job, call)
        except HorovodInternalError as e:
            raise self.problem(e, what) from e
        while self._in_flight and self._in_flight[0].poll():
            self._in_flight.popleft()
        self._in_flight.append(handle)
        return handle

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
            for event, _, _ in self._kept:
                while not event.query() and time.monotonic() < until:
                    time.sleep(0.0001)
        finally:
            self._in_flight.clear()
            self._kept.clear()
            job.close()

    def forget(self) -> None:
        """Forgets the engine, in a forked child."""
        if self._job is not None:
            self._job.forget()

    # --- The collectives ----------------------------------------------------------------------------------------------

    def _all_reduce(
        self, what: str, tensor: Tensor, op: Any, asynchronous: bool, changes: bool = True
    ) -> DeviceWork | None:
        """``changes``: whether the result is stored in the tensor."""
        place = _place(what, tensor)
        source, number, count = flat.as_numbers(tensor, what, op)
        target = source if changes else torch.empty_like(source)
        described = source.data_ptr(), target.data_ptr(), number, (count,), None, *place
        how = _reduction(what, op, tensor.dtype)
        handle = self._submit(what, _ALLREDUCE, described, (source, target), asynchronous, *how)
        finish = flat.copying_back(target, tensor) if changes else None
        return self._work(what, [handle], (tensor,), place, asynchronous, finish)

    def all_reduce(self, tensor: Tensor, op: Any, asynchronous: bool) -> DeviceWork | None:
        return self._all_reduce("all_reduce", tensor, op, asynchronous)

    def reduce(self, tensor: Tensor, root: int, op: Any, asynchronous: bool) -> DeviceWork | None:
        # The engine has no reduce: all ranks get the result, all but the root in separate memory.
        return self._all_reduce("reduce", tensor, op, asynchronous, self.group._number == root)

    def _broadcast(
        self, what: str, root: int, source: int, target: int, size: int, keep: Sequence[Tensor], place: Stream,
        asynchronous: bool,
    ) -> _core.Handle:
        """Broadcasts ``size`` bytes from the address ``source`` to ``target``."""
        described = source, target, _BYTES, (size,), None, *place
        return self._submit(what, _BROADCAST, described, keep, asynchronous, root=root)

    def broadcast(self, tensor: Tensor, root: int, asynchronous: bool) -> DeviceWork | None:
        what = "broadcast"
        place = _place(what, tensor)
        target = flat.packed(tensor, what)
        address = target.data_ptr()
        handle = self._broadcast(what, root, address, address, target.nbytes, [target], place, asynchronous)
        finish = flat.copying_back(target, tensor) if self.group._number != root else None
        return self._work(what, [handle], (tensor,), place, asynchronous, finish)

    # The engine's allgather returns new memory, and freeing that waits for the GPU. So each rank broadcasts its part to
    # its place instead.

    def all_gather(self, targets: Sequence[Tensor], tensor: Tensor, asynchronous: bool) -> DeviceWork | None:
        """``targets`` may differ in size."""
        what = "all_gather"
        place = _place(what, tensor, *targets)
        source, packed = flat.packed(tensor, what), [flat.packed(t, what) for t in targets]
        handles = []
        for root, target in enumerate(packed):
            given = source if root == self.group._number else target
            addresses = given.data_ptr(), target.data_ptr()
            keep = given, target
            handles.append(self._broadcast(what, root, *addresses, target.nbytes, keep, place, asynchronous))
        back = [one for one in map(flat.copying_back, packed, targets) if one is not None]

        def finish() -> None:
            for one in back:
                one()

        return self._work(what, handles, (list(targets),), place, asynchronous, finish if back else None)

    def all_gather_single(self, output: Tensor, input: Tensor, asynchronous: bool) -> DeviceWork | None:
        what = "all_gather_into_tensor"
        place = _place(what, input, output)
        source = flat.packed(input, what)
        handles = []
        for root in range(self.group._count):
            target = output.data_ptr() + root * source.nbytes
            given = source.data_ptr() if root == self.group._number else target
            keep = source, output
            handles.append(self._broadcast(what, root, given, target, source.nbytes, keep, place, asynchronous))
        return self._work(what, handles, (output,), place, asynchronous)

    def reduce_scatter(
        self, what: str, output: Tensor, source: Tensor, lengths: Sequence[int] | None, op: Any, asynchronous: bool
    ) -> DeviceWork | None:
        """``lengths``: elements for each rank if they differ; ``source`` may then be changed."""
        place = _place(what, source, output)
        how = _reduction(what, op, source.dtype)
        packed, number, count = flat.as_numbers(source, what, op)
        address = packed.data_ptr()
        if lengths is not None:  # the engine supports only equal parts
            described = address, address, number, (count,), None, *place
            handle = self._submit(what, _ALLREDUCE, described, [packed], asynchronous, *how)
            mine = torch.split(packed, list(lengths))[self.group._number].view(output.shape)
            return self._work(what, [handle], (output,), place, asynchronous, flat.copying_back(mine, output))
        target = flat.packed(output, what)
        if address < target.data_ptr() + target.nbytes and target.data_ptr() < address + packed.nbytes:
            packed = packed.clone()
        described = packed.data_ptr(), target.data_ptr(), number, (count,), None, *place
        handle = self._submit(what, _REDUCE_SCATTER, described, (packed, target), asynchronous, *how)
        return self._work(what, [handle], (output,), place, asynchronous, flat.copying_back(target, output))

    def _free_results(self, most: int) -> None:
        """Frees results once they exceed ``most`` bytes. Freeing GPU memory waits until the GPU is idle, so small
        amounts are kept.
        """
        while self._kept_bytes > most:
            event, _, size = self._kept.popleft()
            event.synchronize()
            self._kept_bytes -= size

    def _all_to_all(
        self, what: str, source: Tensor | None, send: Sequence[int], targets: Sequence[Tensor], receive: Sequence[int],
        results: Sequence[Any], place: Stream, asynchronous: bool,
    ) -> DeviceWork | None:
        """``send``, ``receive``: bytes to and from each rank. Received bytes fill the targets in order."""
        self._free_results(_MOST_KEPT)
        total = sum(receive)
        described = 0 if source is None else source.data_ptr(), 0, _BYTES, (sum(send),), send, *place
        handle = self._submit(what, _ALLTOALL, described, [] if source is None else [source], asynchronous)

        def finish() -> None:
            sent = handle.received_splits(0)
            for rank, (found, expected) in enumerate(zip(sent, receive)):
                if found != expected:
                    raise HorovodInternalError(f"rank {rank} sends {found} bytes, not {expected}", "mismatch", rank)
            if total != 0:
                data = dlpack.from_dlpack(handle.output(0, place[0])[0].array())
                for target, part in zip(targets, torch.split(data, [t.nbytes for t in targets])):
                    if target.numel() != 0:
                        flat.store(part.view(target.dtype).view(target.shape), target)
            size = max(total, _LEAST_KEPT)
            self._kept.append((torch.cuda.current_stream(place[0]).record_event(), handle, size))
            self._kept_bytes += size

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
