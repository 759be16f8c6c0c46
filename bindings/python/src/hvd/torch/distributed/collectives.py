"""The collectives of a group, under the names by which torch.distributed and PyTorch's C++ code call them.

``opts`` contains the operation, the root and whether the call is asynchronous; it is if ``opts`` is None. A blocking
collective returns None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd import _core
from hvd.exceptions import HorovodInternalError
from hvd.torch.adapter import DTYPES
from hvd.torch.distributed import flat, sparse
from hvd.torch.distributed.device import Device
from hvd.torch.distributed.device_work import JOINED_WORK, DeviceWork
from hvd.torch.distributed.held_work import WORK
from hvd.torch.distributed.operations import CALLERS_TAKE_NONE, Operations, c10d, goes_on
from hvd.torch.distributed.reductions import NUMBERS, SUM, number_of
from hvd.torch.distributed.storages import LEAST, LEAST_SHARED
from hvd.torch.distributed.work import Work

Tensor = torch.Tensor

_ALLREDUCE, _REDUCE, _REDUCE_SCATTER, _ALLGATHER, _BROADCAST, _ALLTOALL, _GATHER, _SCATTER, _BARRIER = (
    _core.operations[name]
    for name in (
        "allreduce", "reduce", "reduce_scatter", "allgather", "broadcast", "alltoall", "gather", "scatter", "barrier",
    )
)
_BYTES = _core.dtypes["uint8"]


def _begun(work: DeviceWork | None) -> DeviceWork:
    """The work of an asynchronous call."""
    assert work is not None
    return work


def _together(tensors: Sequence[Tensor], reduced: bool = True) -> bool:
    """Whether all are on GPUs, and have one dtype if they are reduced: then one call of NCCL takes them."""
    return (
        len(tensors) != 0 and all(t.is_cuda for t in tensors) and not (reduced and len({t.dtype for t in tensors}) > 1)
    )


class Collectives(Operations):
    """See the module."""

    _gpu: Device | None = None

    def _device(self) -> Device:
        """For tensors on GPUs."""
        if self._gpu is None:
            self._gpu = Device(self)
        return self._gpu

    def _allreduce(self, tensor: Tensor, op: Any, asynchronous: bool) -> Work | None:
        number = DTYPES.get(tensor.dtype)
        finish = None
        target = tensor
        count = tensor.numel()
        if number is None or not flat.plain(tensor):
            if tensor.is_cuda:
                return self._device().all_reduce("all_reduce", [tensor], op, asynchronous)
            if tensor.layout is not torch.strided:
                return self._sparse_allreduce(tensor, op, asynchronous)
            target, number, count = flat.as_numbers(tensor, "all_reduce", op)
            finish = flat.copying_back(target, tensor)
        reduction, factor = NUMBERS.get(hash(op)), 1.0
        if reduction is None:
            reduction, factor = number_of(op)
        may_share, descriptor = False, -1
        if tensor.nbytes < LEAST_SHARED:
            address = target.data_ptr()
        else:
            storages = self._storages
            may_share = storages.move_buckets and tensor.nbytes >= LEAST
            if may_share and asynchronous and finish is None:
                descriptor = storages.descriptor(tensor)
            address = storages.address(target) if storages.known else target.data_ptr()
        if not address:
            flat.without_memory(target)
        self._sequence += 1
        try:
            if not asynchronous:
                self._group.run(
                    _ALLREDUCE, address, address, count, number, reduction, factor, 0, None, None, self._seconds,
                    may_share,
                )
                if finish is not None:
                    finish()
                return None
            pending = self._group.submit(
                _ALLREDUCE, address, address, count, number, reduction, factor, 0, None, None, self._seconds, target,
                may_share, descriptor,
            )
        except HorovodInternalError as e:
            raise self.problem(e, "all_reduce") from e
        except ValueError:
            self._refuse_closed()
            raise
        if descriptor >= 0:
            self._storages.mapped_by(tensor, pending)
        return self._work("all_reduce", (pending,), (tensor,), finish)

    def sum_now(self, tensor: Tensor) -> None:
        """Sums a tensor in place; blocks. Has fewer layers than all_reduce: see ``inference_all_reduce``."""
        number = DTYPES.get(tensor.dtype)
        if number is None or tensor.nbytes >= LEAST or not flat.plain(tensor):
            self._allreduce(tensor, SUM, False)
            return
        address = self._address(tensor)
        self._sequence += 1
        try:
            self._group.run(
                _ALLREDUCE, address, address, tensor.numel(), number, 0, 1.0, 0, None, None, self._seconds, False
            )
        except HorovodInternalError as e:
            raise self.problem(e, "all_reduce") from e
        except ValueError:
            self._refuse_closed()
            raise

    def _sparse_allreduce(self, tensor: Tensor, op: Any, asynchronous: bool) -> Work | None:
        def gather(all: Sequence[Tensor], own: Tensor) -> None:
            work = self.allgather([all], [own])
            assert work is not None
            work.wait()

        sparse.allreduce(tensor, op, self._count, gather)
        return WORK(self.problem, "all_reduce", (), (tensor,)) if asynchronous else None

    def allreduce(self, tensors: Any, opts: Any = None) -> Work | None:
        """See torch.distributed.all_reduce."""
        tensor = tensors[0] if type(tensors) is list and len(tensors) == 1 else flat.only(tensors)
        if opts is None:
            return self._allreduce(tensor, SUM, True)
        return self._allreduce(tensor, opts.reduceOp, not CALLERS_TAKE_NONE or opts.asyncOp)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        """See torch.distributed.all_reduce_coalesced."""
        op = SUM if opts is None else opts.reduceOp
        if _together(tensors):
            return _begun(self._device().all_reduce("all_reduce_coalesced", tensors, op, True))
        return self._joined("all_reduce_coalesced", [self._allreduce(t, op, True) for t in tensors], tensors)

    def _joined(self, what: str, works: Sequence[Work | None], results: Sequence[Any]) -> Work:
        """Joins several works into one."""
        made = [one for one in works if one is not None]
        if any(isinstance(one, DeviceWork) for one in made):
            return JOINED_WORK(self.problem, what, made, list(results))

        def finish() -> None:
            for one in made:
                one._complete(None)

        return WORK(self.problem, what, [p for one in made for p in one._pending], list(results), finish)

    def broadcast(self, tensors: Any, opts: Any = None) -> Work | None:
        """See torch.distributed.broadcast."""
        tensor = flat.only(tensors)
        root = 0 if opts is None else opts.rootRank
        self._check_rank("src", root)
        target, finish = tensor, None
        if not flat.plain(tensor):
            if tensor.is_cuda:
                return self._device().broadcast(tensor, root, goes_on(opts))
            target = flat.packed(tensor, "broadcast")
            finish = flat.copying_back(target, tensor) if self._number != root else None
        address = self._address(target)
        return self._start(
            "broadcast", _BROADCAST, address, address, target.nbytes, _BYTES, (tensor,), target,
            goes_on(opts), finish, root=root,
        )  # fmt: skip

    def reduce(self, tensors: Any, opts: Any = None) -> Work | None:
        """See torch.distributed.reduce."""
        tensor = flat.only(tensors)
        root = 0 if opts is None else opts.rootRank
        self._check_rank("dst", root)
        op = SUM if opts is None else opts.reduceOp
        target, number, count, finish = tensor, DTYPES.get(tensor.dtype), tensor.numel(), None
        if number is None or not flat.plain(tensor):
            if tensor.is_cuda:
                return self._device().reduce(tensor, root, op, goes_on(opts))
            target, number, count = flat.as_numbers(tensor, "reduce", op)
            finish = flat.copying_back(target, tensor) if self._number == root else None
        reduction, factor = number_of(op)
        address = self._address(target)
        return self._start(
            "reduce", _REDUCE, address, address, count, number, (tensor,), target, goes_on(opts), finish,
            reduction, factor, root,
        )  # fmt: skip

    def allgather(self, outputs: Sequence[Sequence[Tensor]], inputs: Any, opts: Any = None) -> Work | None:
        """See torch.distributed.all_gather; tensors may differ in size between ranks."""
        source, targets = flat.only(inputs), list(flat.only_list(outputs))
        if not flat.plain(source):
            source = flat.packed(source, "all_gather")
        self._check_list("all_gather", targets, source, self._number)
        lengths = [one.numel() for one in targets]
        equal = len(set(lengths)) == 1
        if source.is_cuda:
            return self._device().all_gather("all_gather", [targets], [source], (targets,), goes_on(opts))
        gathered, finish = flat.gathering(targets, source, self._number)
        return self._start(
            "all_gather", _ALLGATHER, self._address(source), self._address(gathered),
            lengths[0] * source.itemsize if equal else 0, _BYTES, (targets,), (source, gathered),
            goes_on(opts), finish, recv=None if equal else [n * source.itemsize for n in lengths],
        )  # fmt: skip

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work | None:
        """See torch.distributed.all_gather_into_tensor."""
        what = "all_gather_into_tensor"
        source = self._gathered(what, output, input)
        if source.is_cuda:
            return self._device().all_gather_single(what, [output], [source], goes_on(opts))
        return self._start(
            what, _ALLGATHER, self._address(source), self._address(output), source.nbytes, _BYTES,
            (output,), (source, output), goes_on(opts),
        )  # fmt: skip

    _allgather_base = all_gather_single

    def _gathered(self, what: str, output: Tensor, input: Tensor) -> Tensor:
        """The input, contiguous, once both are checked."""
        flat.check_output(output, input, input.numel() * self._count, what)
        flat.check_apart(input, output, self._number * input.nbytes, what)
        return input if flat.plain(input) else flat.packed(input, what)

    def allgather_coalesced(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None) -> Work:
        """See torch.distributed.all_gather_coalesced: ``outputs[r][i]`` is ``inputs[i]`` of rank r."""
        lists = [[one[i] for one in outputs] for i in range(len(inputs))]
        sources = [flat.packed(t, "all_gather_coalesced") for t in inputs]
        for targets, source in zip(lists, sources):
            self._check_list("all_gather_coalesced", targets, source, self._number)
        if _together(sources, False):
            return _begun(self._device().all_gather("all_gather_coalesced", lists, sources, tuple(outputs), True))
        works = [self.allgather([targets], [t]) for targets, t in zip(lists, sources)]
        return self._joined("all_gather_coalesced", works, list(outputs))

    def all_gather_single_coalesced(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Work:
        """Several all_gather_single."""
        what = "all_gather_into_tensor_coalesced"
        if _together(inputs, False):
            sources = [self._gathered(what, o, i) for o, i in zip(outputs, inputs)]
            return _begun(self._device().all_gather_single(what, outputs, sources, True))
        works = [self.all_gather_single(o, i) for o, i in zip(outputs, inputs)]
        return self._joined(what, works, list(outputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: Any, inputs: Sequence[Sequence[Tensor]], opts: Any = None) -> Work | None:
        """See torch.distributed.reduce_scatter; tensors of a list may differ in size."""
        output, sources = flat.only(outputs), list(flat.only_list(inputs))
        self._check_list("reduce_scatter", sources, output, self._number)
        lengths = [one.numel() for one in sources]
        source = flat.joined(sources, output, self._number)
        return self._reduce_scatter("reduce_scatter", output, source, None if len(set(lengths)) == 1 else lengths, opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work | None:
        """See torch.distributed.reduce_scatter_tensor."""
        self._check_scattered("reduce_scatter_tensor", output, input)
        return self._reduce_scatter("reduce_scatter_tensor", output, input, None, opts)

    _reduce_scatter_base = reduce_scatter_single

    def _check_scattered(self, what: str, output: Tensor, input: Tensor) -> None:
        flat.check_output(output, input, input.numel() // self._count, what, True)
        if output.numel() * self._count != input.numel():
            raise ValueError(
                f"hvd: {what}: the input has {input.numel()} elements and the output {output.numel()};"
                f" allowed: {self._count} times as many in the input"
            )
        flat.check_apart(input, output, -self._number * output.nbytes, what)

    def _reduce_scatter(self, what: str, output: Tensor, source: Tensor, lengths: Any, opts: Any) -> Work | None:
        op = SUM if opts is None else opts.reduceOp
        packed, number, numbers = flat.as_numbers(source, what, op, copy=False)
        if packed.is_cuda:
            return self._device().reduce_scatter(what, [output], [source], op, goes_on(opts), lengths)
        target, _, count = flat.as_numbers(output, what, op, copy=False)
        parts = numbers // max(source.numel(), 1)
        finish = None if target.data_ptr() == output.data_ptr() else flat.copying_back(target, output)
        reduction, factor = number_of(op)
        return self._start(
            what, _REDUCE_SCATTER, self._address(packed), self._address(target), count, number, (output,),
            (packed, target), goes_on(opts), finish, reduction, factor,
            send=None if lengths is None else [n * parts for n in lengths],
        )  # fmt: skip

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """Several reduce_scatter_single."""
        what = "reduce_scatter_tensor_coalesced"
        one = c10d.ReduceScatterOptions()
        one.reduceOp, one.asyncOp = (SUM if opts is None else opts.reduceOp), True
        if _together(inputs):
            for output, input in zip(outputs, inputs):
                self._check_scattered(what, output, input)
            return _begun(self._device().reduce_scatter(what, outputs, inputs, one.reduceOp, True))
        works = [self.reduce_scatter_single(o, i, one) for o, i in zip(outputs, inputs)]
        return self._joined(what, works, list(outputs))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Work | None:
        """See torch.distributed.all_to_all."""
        sources, targets = list(inputs), list(outputs)
        for name, tensors in (("input", sources), ("output", targets)):
            if len(tensors) != self._count:
                raise ValueError(f"hvd: all_to_all: {len(tensors)} {name} tensors; allowed: {self._count}, one a rank")
        source = flat.joined(sources)
        if source.is_cuda:
            send, recv = [t.nbytes for t in sources], [t.numel() * source.itemsize for t in targets]
            return self._device().all_to_all("all_to_all", source, send, targets, recv, (targets,), goes_on(opts))
        gathered, finish = flat.gathering(targets, source)
        unit = source.itemsize
        return self._start(
            "all_to_all", _ALLTOALL, self._address(source), self._address(gathered), 0, _BYTES, (targets,), (source, gathered),
            goes_on(opts), finish, send=[t.nbytes for t in sources],
            recv=[t.numel() * unit for t in targets],
        )  # fmt: skip

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: Sequence[int], input_splits: Sequence[int], opts: Any = None
    ) -> Work | None:
        """See torch.distributed.all_to_all_single."""
        source = input if flat.plain(input) else flat.packed(input, "all_to_all_single")
        flat.check_output(output, input, output.numel(), "all_to_all_single")
        send = flat.splits(source, input_splits, self._count, "input")
        recv = flat.splits(output, output_splits, self._count, "output")
        uniform = not output_splits and not input_splits  # rows equal here may differ on other ranks
        if source.is_cuda:
            what, results = "all_to_all_single", (output,)
            return self._device().all_to_all(what, source, send, [output], recv, results, goes_on(opts), uniform)
        flat.check_apart(source, output, 0 if uniform else None, "all_to_all_single")
        return self._start(
            "all_to_all_single", _ALLTOALL, self._address(source), self._address(output), send[0] if uniform else 0,
            _BYTES, (output,), (source, output), goes_on(opts),
            send=None if uniform else send, recv=None if uniform else recv,
        )  # fmt: skip

    alltoall_base = all_to_all_single

    def gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Any, opts: Any = None) -> Work | None:
        """See torch.distributed.gather."""
        source = flat.only(inputs)
        if not flat.plain(source):
            source = flat.packed(source, "gather")
        root = 0 if opts is None else opts.rootRank
        self._check_rank("dst", root)
        target, finish, results = 0, None, []
        keep = [source]
        if source.is_cuda:
            return self._device().gather(outputs, source, root, goes_on(opts))
        if self._number == root:
            results = list(flat.only_list(outputs))
            self._check_list("gather", results, source, root, True)
            gathered, finish = flat.gathering(results, source, root)
            target = self._address(gathered)
            keep.append(gathered)
        return self._start(
            "gather", _GATHER, self._address(source), target, source.nbytes, _BYTES, (results,), keep,
            goes_on(opts), finish, root=root,
        )  # fmt: skip

    def scatter(self, outputs: Any, inputs: Sequence[Sequence[Tensor]], opts: Any = None) -> Work | None:
        """See torch.distributed.scatter."""
        output = flat.only(outputs)
        root = 0 if opts is None else opts.rootRank
        self._check_rank("src", root)
        target = output if flat.plain(output) else flat.packed(output, "scatter")
        if target.is_cuda:
            return self._device().scatter(output, inputs, root, goes_on(opts))
        finish = None if target is output else flat.copying_back(target, output)
        source, keep = 0, [target]
        if self._number == root:
            sources = list(flat.only_list(inputs))
            self._check_list("scatter", sources, output, root, True)
            keep.append(flat.joined(sources, output, root))
            source = self._address(keep[-1])
        return self._start(
            "scatter", _SCATTER, source, self._address(target), target.nbytes, _BYTES, (output,), keep,
            goes_on(opts), finish, root=root,
        )  # fmt: skip

    def barrier(self, opts: Any = None) -> Work | None:
        """See torch.distributed.barrier. If the group has used a GPU, work queued there now is then done, too, and
        errors of its collectives and messages are raised.
        """
        if self._gpu is not None and opts is not None and opts.device is not None and opts.device.type == "cuda":
            torch.cuda.current_stream(opts.device).synchronize()
        if not goes_on(opts):
            for one in (self._gpu, self._pairs):
                if one is not None:
                    one.settle("barrier")
        seconds = 0.0 if opts is None else opts.timeout.total_seconds()  # negative if none was given
        return self._start("barrier", _BARRIER, 0, 0, 0, _BYTES, (), None, goes_on(opts), seconds=seconds)
