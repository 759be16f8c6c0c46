"""Which GPU and which CPUs this rank uses: hvd/pin.hpp for Python."""

from __future__ import annotations

from types import TracebackType

from hvd import _core


class PinGuard:
    """Where the thread that called ``pin`` is pinned. It stays so until ``restore``, or the end of a ``with`` block."""

    def __init__(self, policy: str | None) -> None:
        self._pin = _core.Pin(policy)

    @property
    def ordinal(self) -> int | None:
        """The number of the GPU in this process, as in ``torch.device("cuda", n)``; None without a GPU."""
        return self._pin.ordinal if self._pin.ordinal >= 0 else None

    @property
    def device(self) -> str | None:
        """UUID and PCI address of the GPU."""
        return self._pin.device or None

    @property
    def cpus(self) -> list[int]:
        """The CPUs that the thread was bound to; empty where it was not."""
        return self._pin.cpus

    @property
    def reason(self) -> str:
        """Why this GPU and these CPUs."""
        return f"{self._pin.reason}; CPUs: {self._pin.cpu_reason}"

    def restore(self) -> None:
        """Puts back what was before: the CPUs of the thread, and its current CUDA context."""
        self._pin.restore()
        if self in _active:
            _active.remove(self)

    def __enter__(self) -> PinGuard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def __repr__(self) -> str:
        cpus = f" on CPUs {','.join(map(str, self.cpus))}" if self.cpus else ""
        return f"<hvd pin: {self.device or 'no GPU'}{cpus} ({self.reason})>"


_active: list[PinGuard] = []


def pin(policy: str | None = None) -> PinGuard:
    """Pins the calling thread to the GPU and the CPUs that a policy gives this rank: makes the GPU current, as
    ``torch.cuda.set_device`` does, and sets the thread's affinity, which threads inherit that it starts later. Call it
    before a framework has started its threads; ``init`` need not have been called.

    policy: by default HVD_PIN, which ``hvdrun --pin`` sets, else ``by_local_rank``: local rank i has GPU i. Others:
        ``round_robin`` (modulo their number), ``compact`` and ``scatter`` (fill NUMA nodes, or take them in turn),
        ``numa_near`` (nearest to the CPUs of this process), ``list:A,B`` (one for each local rank: ordinals, UUIDs or
        their beginnings, PCI addresses), ``from_scheduler`` (Spark's or Slurm's), ``current`` and ``none``. With commas
        after or before it: ``shared`` or ``shared:2`` (several ranks on one GPU, with NCCL 2.30 or newer), and
        ``cpus=none`` (the default here; hvdrun binds ranks), ``cpus=numa`` or ``cpus=exclusive`` (whole cores).

    On a host without a GPU only CPUs are bound. Returns a guard: as a context manager it restores what was before.
    ValueError where the policy is invalid or has no GPU for this rank; it names the rank, what is visible and what to
    do. RuntimeError where the kernel or the driver refuses.
    """
    guard = PinGuard(policy)
    _active.append(guard)
    return guard


def local_device() -> int:
    """The number of this rank's GPU in this process, for ``torch.device("cuda", hvd.local_device())``.

    It is that of the last ``pin``, else the one that ``pin()`` would choose. RuntimeError, with the reason, where this
    rank has none.
    """
    if _active and _active[-1].ordinal is not None:
        return _active[-1].ordinal
    return _core.local_device()
