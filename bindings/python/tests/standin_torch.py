"""A stand-in for PyTorch's CUDA tensors, for tests on machines without a GPU and with any build of PyTorch.

Their memory, streams and events are those of the stand-in for libcuda (tests/gpu/standin.hpp). As with a GPU, an
operation is only queued on the current stream and computed later, here by the CPU; memory of a tensor that is gone is
used again on its stream at once; and ``item``, ``tolist`` and ``cpu`` wait for the stream. Of sparse tensors there is
only what ``hvd.torch`` itself needs, without autograd, and a few rare operations on metadata are missing.

It is installed by ``install()``, or runs a script that uses CUDA:

    hvdrun -np 2 python bindings/python/tests/standin_torch.py examples/python/torch_digits.py --device cuda

The script ends with an error if the stand-in has found a mistake.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable

if __name__ == "__main__":  # beside this file, and not only beside the script that it runs
    sys.modules["standin_torch"] = sys.modules["__main__"]

import torch
from torch.utils import dlpack
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from standin_gpu import Range, find_libraries, gpu, refuse

aten: Any = torch.ops.aten


class _Storage:
    """Memory of a device; goes back to the pool of its stream when nothing refers to it. As PyTorch's untyped storage,
    as far as hvd needs one.
    """

    def __init__(self, device: int, size: int, foreign: tuple[int, object] | None = None) -> None:
        self.device, self.size = device, size
        if foreign is None:
            stream = torch.cuda.current_stream(device).cuda_stream
            self.address = _pool.take(device, stream, size)
            weakref.finalize(self, _pool.give, device, stream, size, self.address)
        else:
            self.address, self.owner = foreign
        raw = (ctypes.c_uint8 * max(size, 1)).from_address(gpu().host(self.address))
        self.host = torch.frombuffer(raw, dtype=torch.uint8).untyped_storage()  # for works
        self._cdata = id(self)

    def resizable(self) -> bool:
        """As PyTorch's."""
        return True

    def data_ptr(self) -> int:
        """As PyTorch's."""
        return self.address


class _Pool:
    """As PyTorch's allocator: memory is used again on the stream for which it was allocated, without any wait."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, int, int], list[int]] = {}

    def _key(self, device: int, stream: int, size: int) -> tuple[int, int, int]:
        return device, stream, max(512, 1 << (max(size, 1) - 1).bit_length())

    def take(self, device: int, stream: int, size: int) -> int:
        key = self._key(device, stream, size)
        free = self._free.get(key)
        return free.pop() if free else gpu().alloc(device, key[2])

    def give(self, device: int, stream: int, size: int, address: int) -> None:
        self._free.setdefault(self._key(device, stream, size), []).append(address)


_pool = _Pool()


class CudaTensor(torch.Tensor):
    """A tensor that says it is on a GPU. To PyTorch's own code it is on the CPU and without memory; all that is done to
    it comes to ``_dispatch``.
    """

    _storage: _Storage
    _meta: torch.Tensor

    @staticmethod
    def __new__(cls, meta: torch.Tensor, storage: _Storage) -> CudaTensor:
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, meta.shape, strides=meta.stride(), storage_offset=meta.storage_offset(), dtype=meta.dtype, device="cpu"
        )
        made._meta, made._storage = meta, storage
        return made  # type: ignore[no-any-return]

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})

    device = property(lambda self: torch.device("cuda", self._storage.device))  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    def get_device(self) -> int:
        return self._storage.device

    def data_ptr(self) -> int:
        return self._storage.address + self.storage_offset() * self.element_size() if self.numel() else 0

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda device type tensor to numpy. Use Tensor.cpu() first.")

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        host: torch.Tensor = self.to("cpu")
        return host

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.detach().cpu().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        copy = self.detach().clone().requires_grad_(self.requires_grad)
        memo[id(self)] = copy
        return copy

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"CudaTensor({self.detach().cpu()!r}, device='{self.device}')"

    def __dlpack_device__(self) -> Any:
        return 2, self._storage.device


class SparseCudaTensor(torch.Tensor):
    """A sparse tensor (COO) on a GPU: indices and values. To PyTorch's own code it has no memory."""

    @staticmethod
    def __new__(cls, indices: CudaTensor, values: CudaTensor, size: Sequence[int], coalesced: bool) -> SparseCudaTensor:
        make: Any = torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        made: Any = make(cls, tuple(size), dtype=values.dtype, device="cpu")
        made.parts, made.coalesced = (indices, values), coalesced
        return made  # type: ignore[no-any-return]

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{func} of sparse tensors on the stand-in")

    device = property(lambda self: self.parts[1].device)  # type: ignore[assignment]
    layout = property(lambda self: torch.sparse_coo)  # type: ignore[assignment]
    is_sparse = property(lambda self: True)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    def _indices(self) -> Any:
        return self.parts[0]

    def _values(self) -> Any:
        return self.parts[1]

    def is_coalesced(self) -> bool:
        return self.coalesced

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        indices, values = self.parts
        return torch.sparse_coo_tensor(indices.cpu(), values.cpu(), self.size())

    def coalesce(self) -> SparseCudaTensor:
        whole = self.cpu().coalesce()
        device = self.parts[1].device.index
        return SparseCudaTensor(
            to_device(whole.indices(), device), to_device(whole.values(), device), self.size(), True
        )


def _range(t: CudaTensor, writes: bool) -> Range:
    """The bytes between the first and the last element."""
    if t.numel() == 0:
        return Range(t._storage.address, 0, writes)
    length = sum((n - 1) * step for n, step in zip(t.shape, t.stride())) + 1
    return Range(t._storage.address + t.storage_offset() * t.element_size(), length * t.element_size(), writes)


def _on_host(t: CudaTensor) -> Callable[[], torch.Tensor]:
    """For works: the memory of a tensor as one of the CPU. Like a kernel's argument it keeps nothing alive."""
    host, dtype, place = t._storage.host, t.dtype, (t.storage_offset(), tuple(t.shape), t.stride())

    def view() -> torch.Tensor:
        return torch.empty(0, dtype=dtype).set_(host, *place)  # type: ignore[call-overload,no-any-return]

    return view


def _enqueue(
    device: int, name: str, reads: Sequence[CudaTensor], writes: Sequence[CudaTensor], work: Callable[[], None]
) -> None:
    def run() -> None:
        with torch.no_grad(), torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
            work()

    ranges = [_range(t, False) for t in reads] + [_range(t, True) for t in writes]
    gpu().enqueue(device, torch.cuda.current_stream(device).cuda_stream, name, ranges, run)


def _synchronise(device: int) -> None:
    gpu().synchronise(device, torch.cuda.current_stream(device).cuda_stream)


def _empty(like: torch.Tensor, device: int) -> CudaTensor:
    """A tensor with the shape and strides of one on ``meta``, in new memory."""
    return CudaTensor(like, _Storage(device, like.untyped_storage().nbytes()))


def to_device(t: torch.Tensor, device: int) -> CudaTensor:
    """As ``t.cuda()``: a copy that the host does not wait for."""
    made = _empty(torch.empty_like(t, device="meta"), device)
    _fill(made, t)
    return made


def _fill(to: CudaTensor, values: torch.Tensor) -> None:
    copy, view = values.detach().clone(), _on_host(to)

    def work() -> None:
        view().copy_(copy)

    _enqueue(to._storage.device, "copy to device", [], [to], work)


def _to_host(t: CudaTensor) -> torch.Tensor:
    """As ``t.cpu()``: waits for the current stream."""
    made = torch.empty(t.shape, dtype=t.dtype)
    view = _on_host(t)

    def work() -> None:
        made.copy_(view())

    _enqueue(t._storage.device, "copy to host", [t], [], work)
    _synchronise(t._storage.device)
    return made


def _device_of(flat: Sequence[Any], kwargs: dict[str, Any]) -> int:
    given = kwargs.get("device")
    if given is not None:
        device = torch.device(given)
        return torch.cuda.current_device() if device.index is None else device.index
    return next(x._storage.device for x in flat if isinstance(x, CudaTensor))


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    with _disable_current_modes():
        return _dispatch_without_modes(func, args, kwargs)


def _dispatch_without_modes(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = kwargs.get("device")
    leaves, _ = tree_flatten((args, kwargs))
    mine = [x for x in leaves if isinstance(x, CudaTensor)]
    if func is aten._local_scalar_dense.default:
        return _to_host(args[0]).item()
    if func is aten._to_copy.default:
        source, others = args[0], {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
        if given is not None and torch.device(given).type == "cpu":
            return func(_to_host(source), **others)
        if not isinstance(source, CudaTensor):
            return to_device(func(source, **others), _device_of((), kwargs))
        kwargs = others
        index = source._storage.device if given is None else _device_of((), {"device": given})
        if index != source._storage.device:
            raise NotImplementedError("the stand-in copies nothing from one GPU to another")
    if func is aten.copy_.default:
        to, source = args[:2]
        if not isinstance(to, CudaTensor):
            return to.copy_(_to_host(source))
        if not isinstance(source, CudaTensor):
            _fill(to, source.expand(to.shape))
            return to
    elif len({x._storage.device for x in mine}) > 1:
        raise RuntimeError("Expected all tensors to be on the same device")
    elif any(isinstance(x, torch.Tensor) and not isinstance(x, CudaTensor) and x.dim() > 0 for x in leaves):
        if func not in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default):
            raise RuntimeError(f"Expected all tensors to be on the same device, in {func}")
    device = _device_of(leaves, kwargs)
    if torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags:
        return _by_host(func, args, kwargs, device)
    return _queued(func, args, kwargs, device)


def _with_device(kwargs: dict[str, Any], device: str) -> dict[str, Any]:
    return {k: torch.device(device) if k == "device" and v is not None else v for k, v in kwargs.items()}


def _by_host(func: Any, args: Any, kwargs: dict[str, Any], device: int) -> Any:
    """What depends on values, such as the length of ``nonzero``: CUDA waits there, too."""
    args, kwargs = tree_map(lambda x: _to_host(x) if isinstance(x, CudaTensor) else x, (args, kwargs))
    result = func(*args, **_with_device(kwargs, "cpu"))
    return tree_map(lambda x: to_device(x, device) if isinstance(x, torch.Tensor) else x, result)


def _queued(func: Any, args: Any, kwargs: dict[str, Any], device: int) -> Any:
    """Computes shapes now, on ``meta``, and values later, on the current stream."""

    def meta(x: Any) -> Any:
        if isinstance(x, CudaTensor):
            return x._meta
        return x.to("meta") if isinstance(x, torch.Tensor) and x.dim() > 0 else x

    plain = func(*tree_map(meta, args), **tree_map(meta, _with_device(kwargs, "meta")))
    leaves, _ = tree_flatten((args, kwargs))
    mine = [x for x in leaves if isinstance(x, CudaTensor)]
    changed = _changed(func, args, kwargs)
    by_meta = {id(x._meta): x for x in mine}
    by_storage = {x._meta.untyped_storage()._cdata: x._storage for x in mine}
    fresh: list[CudaTensor] = []
    order: list[CudaTensor | None] = []

    def wrap(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        found = by_meta.get(id(x))
        if found is not None and any(found is one for one in changed):
            order.append(None)
            return found
        storage = by_storage.get(x.untyped_storage()._cdata)
        if storage is not None:  # a view
            order.append(None)
            return CudaTensor(x, storage)
        fresh.append(_empty(x, device))
        order.append(fresh[-1])
        return fresh[-1]

    results = tree_map(wrap, plain)
    for x in changed:  # a new shape, as of out=
        if x._meta.shape != x.shape or x._meta.stride() != x.stride():
            raise NotImplementedError(f"the stand-in changes no shapes in place: {func}")
    if (not fresh and not changed) or "empty" in func._schema.name.rpartition("::")[2]:
        return results
    views = [None if one is None else _on_host(one) for one in order]
    arguments = tree_map(_argument, (args, _with_device(kwargs, "cpu")))

    def work() -> None:
        positional, named = tree_map(lambda x: x() if isinstance(x, _Argument) else x, arguments)
        computed, _ = tree_flatten(func(*positional, **named))
        tensors = [x for x in computed if isinstance(x, torch.Tensor)]
        for view, value in zip(views, tensors):
            if view is not None:
                view().copy_(value)

    _enqueue(device, str(func), mine, [*changed, *fresh], work)
    return results


class _Argument:
    """An argument that becomes a tensor of the CPU when a work begins."""

    def __init__(self, value: torch.Tensor) -> None:
        if isinstance(value, CudaTensor):
            self._view = _on_host(value)
        else:
            copy = value.detach().clone()
            self._view = lambda: copy

    def __call__(self) -> torch.Tensor:
        return self._view()


def _argument(x: Any) -> Any:
    return _Argument(x) if isinstance(x, torch.Tensor) else x


def _changed(func: Any, args: Any, kwargs: dict[str, Any]) -> list[CudaTensor]:
    """The arguments that the operation writes to."""
    found = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            found += [x for x in tree_flatten(value)[0] if isinstance(x, CudaTensor)]
    return found


class _Mode(TorchDispatchMode):
    """Sees what makes new tensors: the rest comes to the tensors themselves."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            return _dispatch(func, args, kwargs)
        if any(isinstance(x, CudaTensor) for x in tree_flatten((args, kwargs))[0]):
            return _dispatch(func, args, kwargs)
        return func(*args, **kwargs)


class Event:
    """As torch.cuda.Event."""

    def __init__(self, **_: Any) -> None:
        self._event = 0
        self._device = 0

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or torch.cuda.current_stream()
        self._device = stream.device.index
        self._event = gpu().record(self._device, stream.cuda_stream)

    def wait(self, stream: Stream | None = None) -> None:
        stream = stream or torch.cuda.current_stream()
        gpu().wait(stream.device.index, stream.cuda_stream, self._event)

    def query(self) -> bool:
        return gpu().passed(self._device, self._event)

    def synchronize(self) -> None:
        while not self.query():
            time.sleep(0.0001)


class Stream:
    """As torch.cuda.Stream."""

    def __init__(self, device: Any = None, priority: int = 0, handle: int | None = None) -> None:
        index = torch.cuda.current_device() if device is None else torch.device("cuda", device).index
        self.device = torch.device("cuda", index)
        self.cuda_stream = gpu().stream(index) if handle is None else handle

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        gpu().synchronise(self.device.index, self.cuda_stream)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.device, self.cuda_stream) == (other.device, other.cuda_stream)

    def __hash__(self) -> int:
        return hash((self.device, self.cuda_stream))


_streams: dict[int, Stream] = {}
_device = 0


def _index(device: Any) -> int:
    if device is None:
        return _device
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return _device if index is None else index


def _current_stream(device: Any = None) -> Stream:
    index = _index(device)
    return _streams.setdefault(index, Stream(index, handle=0))


@contextmanager
def _stream(stream: Stream) -> Iterator[None]:
    before = _current_stream(stream.device)
    _streams[stream.device.index] = stream
    try:
        yield
    finally:
        _streams[stream.device.index] = before


def _set_device(device: Any) -> None:
    global _device
    _device = _index(device)


@contextmanager
def _on_device(device: Any) -> Iterator[None]:
    before = _device
    _set_device(device)
    try:
        yield
    finally:
        _set_device(before)


def _from_dlpack(producer: Any, **options: Any) -> torch.Tensor:
    if isinstance(producer, torch.Tensor) or producer.__dlpack_device__()[0] != 2:
        return _real_from_dlpack(producer, **options)
    from gpu_arrays import read_dlpack

    device = producer.__dlpack_device__()[1]
    index, address, size, owner = read_dlpack(producer, _current_stream(device).cuda_stream)
    return CudaTensor(torch.empty(size, dtype=torch.uint8, device="meta"), _Storage(index, size, (address, owner)))


_real_from_dlpack: Any = torch.from_dlpack
_installed: list[_Mode] = []


def install() -> None:
    """From now on, for good, this PyTorch has CUDA tensors. Before the first import of ``hvd.torch``."""
    if _installed:
        return
    cuda: Any = torch.cuda
    cuda._lazy_init = lambda: None
    cuda.is_available = cuda.is_initialized = lambda: True
    cuda.device_count = lambda: gpu().devices
    cuda.current_device = lambda: _device
    cuda.get_device_capability = lambda device=None: (8, 0)
    cuda.set_device, cuda.device = _set_device, _on_device
    cuda.current_stream = _current_stream
    cuda.default_stream = lambda device=None: Stream(_index(device), handle=0)
    cuda.stream = _stream
    cuda.synchronize = lambda device=None: _synchronise(_index(device))
    cuda.Stream, cuda.Event = Stream, Event
    cuda.ExternalStream = lambda handle, device=None: Stream(_index(device), handle=handle)
    changed: Any = torch
    real_sparse = torch.sparse_coo_tensor

    def sparse_coo_tensor(indices: Any, values: Any, size: Any, **kwargs: Any) -> Any:
        if isinstance(values, CudaTensor):
            return SparseCudaTensor(indices, values, size, False)
        return real_sparse(indices, values, size, **kwargs)

    changed.sparse_coo_tensor = sparse_coo_tensor
    changed.from_dlpack = dlpack.from_dlpack = _from_dlpack
    real_future = torch.futures.Future.__init__
    # Callbacks run on the current streams: this PyTorch knows nothing of others.
    changed.futures.Future.__init__ = lambda self, *, devices=None: real_future(self)
    tensor: Any = torch.Tensor
    real_to, real_storage, real_shared, real_tensor = tensor.to, tensor.untyped_storage, tensor.is_shared, torch.tensor

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        copy = bool(kwargs.pop("copy", False))
        device, dtype, _, memory_format = torch._C._nn._parse_to(  # type: ignore[attr-defined]
            *[torch.device("cuda", _index(x)) if isinstance(x, str) and x == "cuda" else x for x in args], **kwargs
        )
        if device is not None and device.type == "cuda" and device.index is None:
            device = torch.device("cuda", _index(device))
        same = (device is None or device == self.device) and (dtype is None or dtype == self.dtype)
        if same and memory_format is None and not copy:
            return self
        if memory_format is not None:
            return real_to(self, *args, copy=copy, **kwargs)
        return aten._to_copy.default(self, dtype=dtype, device=device)

    def new_tensor(data: Any, *, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> Any:
        made = real_tensor(data, **kwargs)
        return (made if device is None else made.to(device)).requires_grad_(requires_grad)

    tensor.to = to
    tensor.new_tensor = lambda self, data, **kwargs: new_tensor(data, dtype=self.dtype, device=self.device, **kwargs)
    changed.tensor = new_tensor
    tensor.cuda = lambda self, device=None: to(self, torch.device("cuda", _index(device)))
    tensor.untyped_storage = lambda self: self._storage if isinstance(self, CudaTensor) else real_storage(self)
    tensor.is_shared = lambda self: not isinstance(self, CudaTensor) and real_shared(self)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    mode = _Mode()
    _installed.append(mode)
    mode.__enter__()


def main() -> None:
    """Runs the script of the command line."""
    libraries = find_libraries()
    if libraries is None:
        refuse()
    for name, path in libraries.environment.items():
        os.environ.setdefault(name, path)
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    sys.path.append(str(Path(__file__).resolve().parent))
    install()
    runpy.run_path(script, run_name="__main__")
    for device in range(gpu().devices):
        gpu().synchronise(device, 0)
    if gpu().violations:
        raise SystemExit(f"the stand-in has found {gpu().violations} mistakes; the last: {gpu().last_violation}")


if __name__ == "__main__":
    main()
