"""The stand-in for the CUDA driver (tests/gpu/standin.hpp) for Python: its memory, streams, and what it has found.

For tests alone. Streams are threads that work later than the host, and each mistake is counted that a real GPU may
forgive: work that no event orders, memory that is used after it was freed.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parents[3]


class Libraries(NamedTuple):
    """The files of both stand-ins."""

    cuda: str
    nccl: str

    @property
    def environment(self) -> dict[str, str]:
        """By which hvd loads them."""
        return {"HVD_CUDA_LIBRARY": self.cuda, "HVD_NCCL_LIBRARY": self.nccl}


def find_libraries() -> Libraries | None:
    """Those in the folder HVD_TEST_STANDINS, else those of a build; None where nothing is built."""
    given = os.environ.get("HVD_TEST_STANDINS")
    # Those of builds with sanitizers cannot be loaded into Python, which has none.
    folders = [Path(given)] if given else sorted(ROOT.glob("build/*/tests/gpu/standin"), key=_after_normal)
    pairs = [(folder / "libcuda-standin.so", folder / "libnccl-standin.so") for folder in folders]
    built = [pair for pair in pairs if all(path.exists() for path in pair)]
    return Libraries(*map(str, built[0])) if built else None


def _after_normal(folder: Path) -> tuple[bool, str]:
    build = folder.relative_to(ROOT).parts[1]
    return build != "normal", build


WHERE = "HVD_TEST_STANDINS names no folder with them, and no build has them in build/*/tests/gpu/standin"


class _Range(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("writes", ctypes.c_int)]


class Range(NamedTuple):
    """Bytes of a device that a work reads or writes."""

    address: int
    bytes: int
    writes: bool


_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Gpu:
    """The stand-in that HVD_CUDA_LIBRARY names, which hvd uses too. Each call is made with a device's context."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ["HVD_CUDA_LIBRARY"])
        for name, result, *arguments in (
            ("hvd_standin_host", ctypes.c_void_p, ctypes.c_uint64),
            ("hvd_standin_violations", ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t),
            ("hvd_standin_violation", None, ctypes.c_char_p),
            ("hvd_standin_clear_violations", None),
            ("cuInit", ctypes.c_int, ctypes.c_uint),
            ("cuDeviceGetCount", ctypes.c_int, ctypes.POINTER(ctypes.c_int)),
            ("hvd_standin_host_synchronisations", ctypes.c_uint64),
            ("hvd_standin_calls", ctypes.c_uint64, ctypes.c_char_p),
            ("hvd_standin_hold", ctypes.c_int, ctypes.c_void_p),
            ("hvd_standin_release", ctypes.c_int, ctypes.c_void_p),
            ("hvd_standin_pending", ctypes.c_uint64, ctypes.c_void_p),
            ("hvd_standin_enqueue", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, _Function, ctypes.c_void_p,
             ctypes.POINTER(_Range), ctypes.c_size_t),
            ("cuMemAlloc_v2", ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t),
            ("cuMemFree_v2", ctypes.c_int, ctypes.c_uint64),
            ("cuCtxPushCurrent_v2", ctypes.c_int, ctypes.c_void_p),
            ("cuCtxPopCurrent_v2", ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)),
            ("cuDevicePrimaryCtxRetain", ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int),
            ("cuStreamCreateWithPriority", ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint, ctypes.c_int),
            ("cuStreamSynchronize", ctypes.c_int, ctypes.c_void_p),
            ("cuStreamBeginCapture_v2", ctypes.c_int, ctypes.c_void_p, ctypes.c_int),
            ("cuStreamEndCapture", ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)),
            ("cuStreamWaitEvent", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint),
            ("cuEventCreate", ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint),
            ("cuEventRecord", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
            ("cuEventQuery", ctypes.c_int, ctypes.c_void_p),
        ):
            function = getattr(self.library, name)  # kept by the library, unlike library[name]
            function.restype, function.argtypes = result, arguments
        self._call("cuInit", 0)
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        self.devices = count.value
        self._contexts = []
        for device in range(count.value):
            context = ctypes.c_void_p()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts.append(context)
        self._streams: list[tuple[int, int]] = [(device, 0) for device in range(self.devices)]
        self._works: dict[int, Callable[[], None]] = {}
        self._numbers = itertools.count(1)
        self._run = _Function(self._work)
        atexit.register(self._finish)

    def _call(self, symbol: str, *arguments: Any) -> None:
        code = getattr(self.library, symbol)(*arguments)
        if code != 0:
            raise RuntimeError(f"{symbol} of the stand-in: error {code}")

    @contextmanager
    def _on(self, device: int) -> Iterator[None]:
        self._call("cuCtxPushCurrent_v2", self._contexts[device])
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def alloc(self, device: int, size: int) -> int:
        """The address of new memory."""
        address = ctypes.c_uint64()
        with self._on(device):
            self._call("cuMemAlloc_v2", ctypes.byref(address), max(size, 1))
        return address.value

    def free(self, device: int, address: int) -> None:
        """Waits for the device first, as the driver does."""
        with self._on(device):
            self._call("cuMemFree_v2", address)

    def host(self, address: int) -> int:
        """Where this process can touch memory of a device: only works should, and the host after a synchronisation."""
        found: int | None = self.library.hvd_standin_host(address)
        assert found, f"{address:#x} is no memory of a device"
        return found

    def stream(self, device: int) -> int:
        """A new stream, which does not wait for others."""
        made = ctypes.c_void_p()
        with self._on(device):
            self._call("cuStreamCreateWithPriority", ctypes.byref(made), 1, 0)
        assert made.value
        self._streams.append((device, made.value))
        return made.value

    def enqueue(
        self, device: int, stream: int, name: str, ranges: Sequence[Range], function: Callable[[], None]
    ) -> None:
        """Queues a work: the function runs later, on the stream's thread, and touches these ranges and no others."""
        number = next(self._numbers)
        self._works[number] = function
        touched = (_Range * len(ranges))(*[(r.address, r.bytes, r.writes) for r in ranges])
        with self._on(device):
            self._call("hvd_standin_enqueue", stream, name.encode(), self._run, number, touched, len(ranges))

    def _work(self, number: int) -> None:
        try:
            self._works.pop(number)()
        except BaseException as e:
            self.library.hvd_standin_violation(f"a work has failed: {type(e).__name__}: {e}".encode())

    def synchronise(self, device: int, stream: int) -> None:
        """The host waits for a stream."""
        with self._on(device):
            self._call("cuStreamSynchronize", stream)

    def record(self, device: int, stream: int) -> int:
        """An event behind what is queued on the stream now; it is never destroyed."""
        event = ctypes.c_void_p()
        with self._on(device):
            self._call("cuEventCreate", ctypes.byref(event), 2)
            self._call("cuEventRecord", event, stream)
        assert event.value
        return event.value

    def wait(self, device: int, stream: int, event: int) -> None:
        """What is queued on the stream from now on begins after the event."""
        with self._on(device):
            self._call("cuStreamWaitEvent", stream, event, 0)

    def passed(self, device: int, event: int) -> bool:
        """Whether the device is past an event."""
        with self._on(device):
            code: int = self.library.cuEventQuery(event)
        if code not in (0, 600):
            raise RuntimeError(f"cuEventQuery of the stand-in: error {code}")
        return code == 0

    @contextmanager
    def held(self, device: int, stream: int) -> Iterator[None]:
        """What is queued on the stream within the block does not begin before its end."""
        with self._on(device):
            self._call("hvd_standin_hold", stream)
        try:
            yield
        finally:
            with self._on(device):
                self._call("hvd_standin_release", stream)

    @contextmanager
    def captured(self, device: int, stream: int) -> Iterator[None]:
        """What is queued on the stream within the block becomes a CUDA graph, as in torch.cuda.graph."""
        with self._on(device):
            self._call("cuStreamBeginCapture_v2", stream, 0)
        try:
            yield
        finally:
            with self._on(device):
                self._call("cuStreamEndCapture", stream, ctypes.byref(ctypes.c_void_p()))

    def pending(self, device: int, stream: int) -> int:
        """How many works of the stream are not over."""
        with self._on(device):
            return int(self.library.hvd_standin_pending(stream))

    @property
    def violations(self) -> int:
        """How many mistakes were found so far."""
        return int(self.library.hvd_standin_violations(None, 0))

    @property
    def last_violation(self) -> str:
        """The sentence about the last one."""
        text = ctypes.create_string_buffer(500)
        self.library.hvd_standin_violations(text, len(text))
        return text.value.decode()

    def clear_violations(self) -> None:
        """For tests that make mistakes on purpose."""
        self.library.hvd_standin_clear_violations()

    @property
    def host_synchronisations(self) -> int:
        """How often the host has waited for a device."""
        return int(self.library.hvd_standin_host_synchronisations())

    def calls(self, symbol: str) -> int:
        """How often a function of the driver or of NCCL was called."""
        return int(self.library.hvd_standin_calls(symbol.encode()))

    def _finish(self) -> None:
        """Works call Python, which ends."""
        for device, stream in self._streams:
            self.synchronise(device, stream)


_gpu: list[Gpu] = []


def gpu() -> Gpu:
    """The stand-in of this process."""
    if not _gpu:
        _gpu.append(Gpu())
    return _gpu[0]


def refuse() -> NoReturn:
    """Ends a program that needs the stand-ins where they are not built."""
    raise SystemExit(f"the stand-ins for libcuda and libnccl are not built: {WHERE}")
