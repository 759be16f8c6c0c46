"""The GPU and the CPUs of this rank: hvd/pin.hpp for Python."""

from __future__ import annotations

from types import TracebackType

from hvd import _core


class PinGuard:
    """The pinning of the thread that called ``pin``. It lasts until ``restore`` or the end of a ``with`` block."""

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
        """The CPUs that the thread was bound to; empty if it was not bound."""
        return self._pin.cpus

    @property
    def reason(self) -> str:
        """The reason for this GPU and these CPUs."""
        return f"{self._pin.reason}; CPUs: {self._pin.cpu_reason}"

    def restore(self) -> None:
        """Restores the thread's previous CPUs and CUDA context."""
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
    """Pins the calling thread to the GPU and CPUs that a policy assigns to this rank. It makes the GPU current, as
    ``torch.cuda.set_device`` does, and sets the thread's affinity, which threads started later inherit. Call it before
    a framework has started its threads; ``init`` is not required.

    policy: by default HVD_PIN, which ``hvdrun --pin`` sets, otherwise ``by_local_rank``: local rank i has GPU i.
    Others:
        ``round_robin`` (modulo their number), ``compact`` and ``scatter`` (fill NUMA nodes, or take them in turn),
        ``numa_near`` (nearest to the CPUs of this process), ``list:A,B`` (one for each local rank: ordinals, UUIDs or
        their beginnings, PCI addresses), ``from_scheduler`` (Spark's or Slurm's), ``current`` and ``none``. Options are
        separated by commas: ``shared`` or ``shared:2`` (several ranks on one GPU, with NCCL 2.30 or newer), and
        ``cpus=none`` (the default here; hvdrun binds ranks), ``cpus=numa`` or ``cpus=exclusive`` (whole cores).

    On a host without a GPU, binds CPUs only. Returns a guard, which as a context manager restores the previous state.
    ValueError if the policy is invalid or has no GPU for this rank; the text contains the rank, the visible devices and
    a remedy. RuntimeError if the kernel or the driver refuses.
    """
    guard = PinGuard(policy)
    _active.append(guard)
    return guard


def local_device() -> int:
    """The number of this rank's GPU in this process, for ``torch.device("cuda", hvd.local_device())``.

    This is the GPU of the last ``pin``, or otherwise the one that ``pin()`` would choose. RuntimeError, with the
    reason, if this rank has none.
    """
    if _active and _active[-1].ordinal is not None:
        return _active[-1].ordinal
    return _core.local_device()
