"""Arrays on GPUs of the stand-in for the CUDA driver, and what hvd has to know about them. For tests alone."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import numpy.typing as npt
from hvd import _core
from hvd.core.adapter import Stream
from hvd.core.blocking import Blocking
from hvd.core.collectives import Collectives
from standin_gpu import Range, gpu

Array = npt.NDArray[Any]


def host_view(address: int, dtype: Any, shape: Sequence[int]) -> Array:
    """The host's view of memory of a device: for works, and after a synchronisation."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size == 0:
        return np.empty(shape, dtype)
    raw = (ctypes.c_uint8 * size).from_address(gpu().host(address))
    return np.frombuffer(raw, dtype=np.uint8).view(dtype).reshape(shape)


class _DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DLTensor(ctypes.Structure):
    """The C structure of DLPack, with the type taken apart."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device", _DLDevice), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
    ]


def read_dlpack(producer: Any, stream: int) -> tuple[int, int, int, object]:
    """Device, address and bytes of what a producer of DLPack holds on a GPU, and what keeps it alive."""
    kind, device = producer.__dlpack_device__()
    assert kind == 2, "DLPack's number of CUDA"
    capsule = producer.__dlpack__(stream=stream or 1)  # 1: the default stream of CUDA
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = DLTensor.from_address(get(capsule, b"dltensor"))
    assert (tensor.device.type, tensor.device.id) == (2, device)
    assert (tensor.ndim, tensor.code, tensor.bits, tensor.lanes) == (1, 1, 8, 1), "bytes"
    return device, tensor.data + tensor.offset, tensor.shape[0], capsule


class DeviceArray:
    """Memory of a device, and the stream on which the program works with it."""

    def __init__(self, device: int, stream: int, shape: Sequence[int], dtype: Any, address: int = 0) -> None:
        self.device, self.stream = device, stream
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.bytes = int(np.prod(self.shape)) * self.dtype.itemsize
        self._own = address == 0
        self.address = address or gpu().alloc(device, self.bytes)
        self.owner: object = None

    def __del__(self) -> None:
        if self._own:
            gpu().free(self.device, self.address)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device

    def fill(self, values: Any) -> None:
        """Queues a work that writes the values."""
        copy = np.broadcast_to(np.asarray(values, self.dtype), self.shape).copy()
        self.enqueue("fill", True, lambda view: np.copyto(view, copy))

    def enqueue(self, name: str, writes: bool, function: Callable[[Array], Any], stream: int | None = None) -> None:
        """Queues a work on the array, which gets its view on the host."""
        touched = [Range(self.address, self.bytes, False)] + [Range(self.address, self.bytes, True)] * writes
        address, dtype, shape = self.address, self.dtype, self.shape
        gpu().enqueue(
            self.device, self.stream if stream is None else stream, name, touched,
            lambda: function(host_view(address, dtype, shape)),
        )

    def read(self) -> Array:
        """The values, once a work on the stream has copied them."""
        found: list[Array] = []
        self.enqueue("read", False, lambda view: found.append(view.copy()))
        gpu().synchronise(self.device, self.stream)
        return found[0]


class ArrayAdapter:
    """See core.adapter.Adapter."""

    def readable(self, value: Any) -> DeviceArray:
        assert isinstance(value, DeviceArray)
        return value

    writable = readable

    def describe(self, tensor: DeviceArray, written: bool) -> tuple[int, int, tuple[int, ...]]:
        return tensor.address, _core.dtypes[tensor.dtype.name], tensor.shape

    def stream_of(self, tensor: DeviceArray) -> Stream | None:
        return tensor.device, tensor.stream

    def hold(self, tensor: DeviceArray, exposed: bool) -> object:
        return tensor

    def is_at(self, tensor: DeviceArray, address: int, shape: tuple[int, ...]) -> bool:
        return tensor.address == address and tensor.shape == shape

    def mark_written(self, tensors: Sequence[DeviceArray]) -> None:
        pass

    def empty(self, shape: tuple[int, ...], like: DeviceArray) -> DeviceArray:
        return DeviceArray(like.device, like.stream, shape, like.dtype)

    def over(self, memory: _core.Memory, shape: tuple[int, ...], like: DeviceArray) -> DeviceArray:
        device, address, size, owner = read_dlpack(memory.array(), like.stream)
        assert device == like.device
        array = DeviceArray(like.device, like.stream, shape, like.dtype, address)
        assert array.bytes == size
        array.owner = owner
        return array

    def integers(self, values: Sequence[int]) -> Any:
        return list(values)


OPS: Collectives[DeviceArray] = Collectives(ArrayAdapter())
BLOCKING: Blocking[DeviceArray] = Blocking(OPS)
