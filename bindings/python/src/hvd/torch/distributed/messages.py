"""Tagged messages between two ranks of a group, and operations built on them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from hvd.exceptions import HorovodInternalError
from hvd.torch.distributed import flat
from hvd.torch.distributed.device_messages import Pairs
from hvd.torch.distributed.operations import Operations
from hvd.torch.distributed.work import Work

Tensor = torch.Tensor


class Messages(Operations):
    """Point-to-point operations of a group. A send waits until the other rank receives, unless the message fits into
    the small buffer between them, or both tensors are on GPUs: then the host waits only until both have called.
    """

    def _post(self, sends: bool, tensor: Tensor, peer: int, tag: int, seconds: float, at_once: bool) -> Work:
        what = "send" if sends else "recv"
        finish = None
        packed = tensor
        if not flat.plain(tensor):
            if tensor.is_cuda:
                if self._pairs is None:
                    self._pairs = Pairs(self)
                begun: Work = self._pairs.post(sends, tensor, peer, tag)
                return begun
            packed = flat.packed(tensor, what)
            finish = None if sends else flat.copying_back(packed, tensor)
        address = packed.data_ptr() or flat.without_memory(packed)
        try:
            pending = self._group.post(
                sends, address, packed.nbytes, peer, tag, seconds, packed, at_once
            )
        except HorovodInternalError as e:
            raise self.problem(e, what) from e
        except ValueError:
            self._refuse_closed()
            raise
        return self._work(what, (pending,), (tensor,), finish)

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        """See torch.distributed.send."""
        self._check_rank("dst", dst)
        return self._post(True, flat.only(tensors), dst, tag, self._seconds, False)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        """See torch.distributed.recv."""
        self._check_rank("src", src)
        return self._post(False, flat.only(tensors), src, tag, self._seconds, False)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Receives a message with this tag from any rank; ``Work.source_rank`` returns which."""
        return self._post(False, flat.only(tensors), -1, tag, self._seconds, False)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """See torch.distributed.monitored_barrier: rank 0 reports the ranks that do not arrive within ``timeout``."""
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        _monitored_barrier(self, seconds, wait_all_ranks)


def _monitored_barrier(group: Messages, seconds: float, wait_all_ranks: bool) -> None:
    """Rank 0 reads from all others and sends each whether all have arrived. If not, it raises, and so do they. The time
    limit is rank 0's: an early rank does not give up before rank 0 does. Error texts are Gloo's.
    """
    tag = -(1 << 40) - group._barriers  # used by no message of a program, and by no other barrier
    group._barriers += 1
    if group._number == 0:
        _await_all(group, tag, seconds, wait_all_ranks)
        return
    answer = torch.zeros(1, dtype=torch.uint8, device="cpu")
    limit = max(seconds, group._seconds)
    cause = None
    try:
        group._post(True, torch.ones(1, dtype=torch.uint8, device="cpu"), 0, tag, limit, True).wait()
        group._post(False, answer, 0, tag, limit, True).wait()
        trouble = "" if answer.item() else "rank 0 has reported that not all ranks came in time"
    except RuntimeError as e:
        cause, trouble = e, str(e)
    if trouble:
        raise RuntimeError(
            f"Rank {group._number} successfully reached monitoredBarrier, but received errors while waiting for"
            f" send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: {trouble}"
        ) from cause


def _await_all(group: Messages, tag: int, seconds: float, wait_all_ranks: bool) -> None:
    milliseconds = int(seconds * 1000)
    others = range(1, group._count)
    if seconds <= 0 and others:
        raise RuntimeError(f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {milliseconds} ms.")
    calls = [group._post(False, torch.empty(1, dtype=torch.uint8, device="cpu"), peer, tag, seconds, True) for peer in others]
    missing: dict[int, RuntimeError] = {}
    for peer, call in zip(others, calls):
        try:
            call.wait()
        except RuntimeError as e:
            # All messages fail when one rank is lost. The error contains its number.
            lost = getattr(e.__cause__, "rank", peer)
            missing[lost if lost in others else peer] = e
            if not wait_all_ranks:
                break
    answer = torch.tensor([not missing], dtype=torch.uint8, device="cpu")
    limit = max(seconds, 1.0)
    if not missing:
        for answered in [group._post(True, answer, peer, tag, limit, True) for peer in others]:
            answered.wait()
        return
    for peer in others:
        try:
            group._post(True, answer, peer, tag, limit, False)
        except RuntimeError:  # nobody is there any more
            break
    if wait_all_ranks:
        raise RuntimeError(
            f"[Rank 0]: Ranks {', '.join(map(str, sorted(missing)))} failed to pass monitoredBarrier in"
            f" {milliseconds} ms."
        )
    ((rank, error),) = missing.items()
    raise RuntimeError(
        f"[Rank 0]: Rank {rank} failed to pass monitoredBarrier in {milliseconds} ms.\n Original exception: {error}"
    ) from error
