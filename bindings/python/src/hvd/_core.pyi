"""The engine of hvd: tensors are addresses, types and shapes. Everything here is for hvd's own modules."""

from typing import Any, Callable, Union
from collections.abc import Sequence

# (address of the input, address of the output or 0, number of the dtype, shape[, rows for each rank, or None
# [, number of the GPU, its stream[, rows of the output of an alltoall]]]). Of memory on a GPU, the stream is that on
# which the program works with it now.
Tensor = Union[
    tuple[int, int, int, tuple[int, ...]],
    tuple[int, int, int, tuple[int, ...], Sequence[int]],
    tuple[int, int, int, tuple[int, ...], Union[Sequence[int], None], int, int],
    tuple[int, int, int, tuple[int, ...], Union[Sequence[int], None], int, int, int],
]

version: str
dtypes: dict[str, int]
operations: dict[str, int]

class Memory:
    """A result, or memory for one: a writable buffer of bytes, which lives as long as any view of it."""

    def __len__(self) -> int: ...
    @property
    def address(self) -> int: ...
    def array(self) -> object:
        """The bytes as an object with ``__dlpack__``: also those on a GPU, where only this works."""

    def let_go(self, stream: int, /) -> None:
        """Drops memory of a GPU that nobody uses after the work now on this stream, so that it is used again."""

    def dlpack(self, dtype: int, shape: Sequence[int], /) -> object:
        """As a tensor for ``from_dlpack``: a capsule of the kind without a version. Only of memory on the host."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

def allocate(bytes: int, /) -> Memory:
    """Memory of the host, aligned to 64 bytes."""

class Handle:
    """An operation in flight, or done."""

    def poll(self) -> bool:
        """Whether it is done, successfully or not."""

    def wait(self, limit: float | None = None) -> None:
        """Waits without the GIL. Raises HorovodInternalError, KeyboardInterrupt, TimeoutError after ``limit`` s."""

    def let_go(self) -> None:
        """The name may be used again before the operation is done."""

    def wait_queued(self, limit: float | None = None) -> None:
        """As ``wait``; of an operation on a GPU, only until all of its work is queued there."""

    def make_stream_wait(self, device: int, stream: int) -> None:
        """After ``wait_queued``: what is queued on this stream from now on begins when the results are there."""

    def output(self, i: int, device: int = -1) -> tuple[Memory, tuple[int, ...]]:
        """Memory and shape of result ``i`` of a finished operation, where the engine allocated it; ``device``: the
        number of the GPU that the tensor is on.
        """

    def received_splits(self, i: int) -> tuple[int, ...]:
        """Of an alltoall: rows from each rank."""

    def last_joined(self) -> int:
        """Of a join: the rank that joined last."""

class Job:
    """A group of ranks with its engine."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def hosts(self) -> list[int]:
        """The host of each rank: a number that ranks with common memory share."""

    def submit(
        self,
        pending: object,
        kind: int,
        name: str,
        tensors: Sequence[Tensor],
        op: int,
        prescale: float,
        postscale: float,
        wire: int,
        root: int,
        priority: int,
        process_set: int,
        keep: object,
        wake: bool,
        done: Callable[[], object] | None = None,
        /,
    ) -> None:
        """Begins an operation, and sets ``pending.handle``. ``wire`` is the number of the dtype in which wider
        floating-point tensors travel, or -1 for their own. ``keep`` is referenced until it is done. ``done`` is what
        ``next_callback`` returns then. Without ``wake`` the caller waits at once, and its thread does the work. Raises
        ValueError.
        """

    def join(self) -> Handle: ...
    def settle(self) -> None:
        """Waits until the work queued on this rank's GPU has ended, and raises the error of work that has failed."""

    def add_process_set(self, ranks: Sequence[int], /) -> int: ...
    def remove_process_set(self, id: int, /) -> None: ...
    def alloc_bucket(self, bytes: int, /) -> Memory:
        """Memory, zero at first, whose tensors are reduced without a copy. Collective over all ranks; waits."""

    def alloc_device_bucket(self, bytes: int, device: int, /) -> Memory:
        """The same on this rank's GPU, registered with NCCL where that is possible."""

    def start_timeline(self, path: str, mark_cycles: bool, /) -> None: ...
    def stop_timeline(self) -> None: ...
    def mark_step(self, samples: int, /) -> None: ...
    def metrics(self) -> dict[str, Any]:
        """See hvd.metrics."""

    def publish(self) -> None:
        """Programs that XLA has compiled use this job until it is closed."""

    def close(self) -> None: ...
    def forget(self) -> None: ...

class Pending:
    """An operation of a group, in flight or done."""

    def wait(self, limit: float | None = None) -> bool:
        """Waits without the GIL; False if it is not done after ``limit`` s. Raises HorovodInternalError."""

    def poll(self) -> bool: ...
    def then(self, function: Callable[[], object], /) -> None:
        """``next_group_callback`` returns the function when the operation has ended."""

    @property
    def shared(self) -> Memory | None:
        """Of an operation with a file: the file's bytes, mapped by all ranks."""

    @property
    def source(self) -> int:
        """Of a message received: the rank that it came from."""

class Group:
    """A group of ranks for torch.distributed: all call the same collectives in the same order."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def hosts(self) -> list[int]:
        """The host of each rank: a number that ranks with common memory share."""

    def run(
        self, kind: int, source: int, target: int, count: int, dtype: int, op: int, factor: float, root: int,
        send: Sequence[int] | None, recv: Sequence[int] | None, timeout: float, may_share: bool, /,
    ) -> None:
        """Runs a collective on these addresses. ``count``: of elements, in a block where there are equal ones; ``send``
        and ``recv``: of each block where they differ. ``may_share``: ranks exchange whether they have a file.
        """

    def submit(
        self, kind: int, source: int, target: int, count: int, dtype: int, op: int, factor: float, root: int,
        send: Sequence[int] | None, recv: Sequence[int] | None, timeout: float, keep: object, may_share: bool,
        file: int, /,
    ) -> Pending:
        """Begins it. ``keep`` is referenced until it is done. ``file``: a descriptor of the shared memory that the buffer
        is, to be mapped by all ranks on the way, or -1.
        """

    def post(
        self, sends: bool, address: int, bytes: int, peer: int, tag: int, timeout: float, keep: object, at_once: bool, /
    ) -> Pending:
        """Sends a message, or receives one, from any rank where ``peer`` is -1. ``at_once``: the caller waits next."""

    def alloc_shared(self, bytes: int, /) -> Memory | None: ...
    def map_shared(self, file: int, bytes: int, /) -> Memory | None:
        """The files of all ranks, mapped; None where that is not possible. Collective."""

    def start_timeline(self, path: str, /) -> None: ...
    def describe(self, process_set: int, ranks: Sequence[int], /) -> None:
        """The name in the timeline of a group that does not have all ranks."""

    def abort(self) -> None: ...
    def close(self, limit: float = 5.0) -> None: ...
    def forget(self) -> None: ...

# (kind, source, target, count, dtype, op, factor, root, send, recv): see Group.run.
Collective = tuple[int, int, int, int, int, int, float, int, Union[Sequence[int], None], Union[Sequence[int], None]]

class DevicePending:
    """Collectives on a GPU that were called together, queued or done."""

    def poll(self) -> bool:
        """Whether the GPU is done, or has failed."""

    def wait(self, limit: float | None = None) -> None:
        """Waits for that, without the GIL. Raises HorovodInternalError, TimeoutError after ``limit`` s."""

    def wait_queued(self, limit: float | None = None) -> None:
        """Raises the error, if it has failed."""

    def make_stream_wait(self, device: int, stream: int) -> None:
        """Work queued on this stream from now on begins when the results are there."""

    def complete(self) -> None:
        """Of an open one: the work that was queued on the group's stream meanwhile belongs to it."""

class DeviceGroup:
    """Collectives of a group of ranks on their GPUs, by NCCL. All ranks call the same ones in the same order."""

    def __init__(self, group: Group, nccl: NcclOptions, check: bool, /) -> None: ...
    def connect(self, device: int, timeout: float, /) -> None:
        """Connects the ranks; collective. Raises the same error on all of them."""

    @property
    def stream(self) -> int:
        """The stream on which collectives run."""

    def queue(
        self, what: str, calls: Sequence[Collective], stream: int, timeout: float, keep: object, open: bool, /
    ) -> DevicePending:
        """Queues collectives, launched together, after the work on the program's stream. ``keep`` is referenced until
        the GPU is done or that stream waits for it. ``open``: ``DevicePending.complete`` follows.
        """

    def settle(self) -> None:
        """Waits for all. Raises HorovodInternalError, also of collectives before."""

    def abort(self) -> None: ...
    def close(self, limit: float, /) -> None: ...
    def forget(self) -> None: ...

def group_alone() -> Group: ...
def group_shm(name: str, rank: int, size: int, timeout: float, check: bool, /) -> Group: ...
def group_over(connection: object, /) -> Group:
    """The group of ranks that ``_core_mpi.connect_group``, ``accept_tcp`` or ``connect_tcp`` has connected, which are
    then used up.
    """

class TcpListener:
    """Where rank 0 waits for the others: see hvd::TcpListener. ``address``: "HOST:PORT", port 0 for any free one."""

    def __init__(self, address: str, secret: str, /) -> None: ...
    @property
    def address(self) -> str: ...

def time_limits() -> tuple[float, float]:
    """HVD_TIMEOUT and HOROVOD_START_TIMEOUT, or their defaults, in seconds."""

def accept_tcp(listener: TcpListener, size: int, timeout: float, start_timeout: float, check: bool, /) -> object:
    """Connects the ranks by TCP between hosts, and by shared memory within each, as rank 0. ``timeout``,
    ``start_timeout``: in seconds; ``check``: ranks compare their calls. See hvd::TcpTransport for the errors.
    """

def connect_tcp(
    rank: int, size: int, address: str, secret: str, timeout: float, start_timeout: float, check: bool, /
) -> object:
    """The same as another rank."""

def next_group_callback() -> Callable[[], object]: ...
def mark_group_step(samples: int, /) -> None: ...
def group_metrics() -> list[dict[str, Any]]:
    """The operations of all groups that this process has been in, as of ``hvd.metrics``; their process set is -1."""

def stop_group_timeline() -> None: ...
def next_callback() -> Callable[[], object]:
    """Waits until an operation has ended that was submitted with ``done``, and returns that."""

def forget_callbacks() -> None:
    """For a forked child: functions of its parent are not called."""

def register_xla(library: str, /) -> str:
    """Makes ``hvd_collective`` known to the XLA of TensorFlow, whose library has this path. Returns why that is not
    possible; "" where it is.
    """

def xla_handler() -> object:
    """A capsule of the handler of ``hvd_collective``, for ``jax.ffi.register_ffi_target``."""

def xla_failures() -> list[tuple[str, str, int, bool]]:
    """Why calls of compiled programs have failed since this was called last: text, kind and rank of the ``hvd::error``,
    and whether it is one of the arguments.
    """

def nccl_version() -> int:
    """That of the NCCL that is found, as 22809; 0 without one."""

def find_place(environment: dict[str, str], /) -> tuple[int, int, int, int, int, int, str, str]:
    """The fields of ``hvd.core.placement.Place``."""

def lone_rank_warning(environment: dict[str, str], /) -> str:
    """A sentence if a launcher that is not known has started several processes, each a job of one; else empty."""

class Pin:
    """The calling thread, pinned until ``restore``; ``hvd.core.pinning`` describes the policies."""

    def __init__(self, policy: str | None = None) -> None: ...
    def restore(self) -> None: ...
    @property
    def ordinal(self) -> int:
        """-1 without a GPU."""

    @property
    def device(self) -> str: ...
    @property
    def cpus(self) -> list[int]: ...
    @property
    def reason(self) -> str: ...
    @property
    def cpu_reason(self) -> str: ...

def local_device() -> int: ...
def parse_pin(policy: str, /) -> str:
    """The policy as hvd writes it. Raises ValueError."""

def plan_placement(
    ranks: int, policy: str, first_rank: int, cores_each: int, /
) -> list[tuple[list[int], str, str, str | None, str, str, str]]:
    """The fields of ``hvd.launcher.supervisor.planning.Share`` for each rank of this host. Raises ValueError."""

class NcclOptions:
    """The options of NCCL for a group of torch.distributed: see hvd::nccl_options."""

    min_ctas: int
    max_ctas: int
    network: str
    high_priority: bool

def connect(connected: object, /) -> Job:
    """The job of what ``_core_mpi.connect`` has connected, which is then used up."""

def connect_alone() -> Job: ...
def connect_shm(name: str, rank: int, size: int, nccl: NcclOptions | None = None) -> Job:
    """With ``nccl`` for a group of torch.distributed: the job records in the timeline of all groups."""
