"""Messages between two ranks of a group, with tags, and what is made of them."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch

from hvd.exceptions import HorovodInternalError
from hvd.torch.distributed import flat
from hvd.torch.distributed.operations import Operations
from hvd.torch.distributed.work import Work

Tensor = torch.Tensor


class Messages(Operations):
    """See the module. A message waits until the other rank receives it, or a little of it fits between them."""

    def _post(self, sends: bool, tensor: Tensor, peer: int, tag: int, seconds: float, at_once: bool) -> Work:
        what = "send" if sends else "recv"
        finish = None
        packed = tensor
        if not flat.plain(tensor):
            packed = flat.packed(tensor, what)
            finish = None if sends else flat.copying_back(packed, tensor)
        try:
            pending = self._group.post(
                sends, packed.data_ptr(), packed.nbytes, peer, tag, seconds, packed, at_once
            )
        except HorovodInternalError as e:
            raise self.problem(e, what) from e
        except ValueError:
            self._refuse_closed()
            raise
        return Work(self.problem, what, (pending,), (tensor,), finish)

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        """See torch.distributed.send."""
        self._check_rank("dst", dst)
        return self._post(True, flat.only(tensors), dst, tag, self._seconds, False)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        """See torch.distributed.recv."""
        self._check_rank("src", src)
        return self._post(False, flat.only(tensors), src, tag, self._seconds, False)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """A message with this tag from any rank; ``Work.source_rank`` tells from which."""
        return self._post(False, flat.only(tensors), -1, tag, self._seconds, False)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """See torch.distributed.monitored_barrier: rank 0 names the ranks that do not come within ``timeout``."""
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        _monitored_barrier(self, seconds, wait_all_ranks)


def _monitored_barrier(group: Messages, seconds: float, wait_all_ranks: bool) -> None:
    """Rank 0 hears from all others and answers each; it raises for those that do not come, and they for it."""
    tag = -(1 << 40)  # no program's messages have it
    end = time.monotonic() + seconds
    token = torch.zeros(1, dtype=torch.uint8)
    me, size = group._number, group._count

    def swap(peer: int) -> None:
        left = max(end - time.monotonic(), 0.001)
        if me == 0:
            group._post(False, token, peer, tag, left, True).wait()
            return
        group._post(True, token, peer, tag, left, True).wait()
        group._post(False, token, peer, tag, left, True).wait()

    if me != 0:
        try:
            swap(0)
        except (RuntimeError, HorovodInternalError) as e:
            raise RuntimeError(
                f"Rank {me} successfully reached monitoredBarrier, but received errors while waiting for send/recv from"
                f" rank 0. Please check rank 0 logs for faulty rank.\n Original exception: {e}"
            ) from e
        return
    missing = []
    for peer in range(1, size):
        try:
            swap(peer)
        except (RuntimeError, HorovodInternalError) as e:
            missing.append(peer)
            if not wait_all_ranks:
                raise RuntimeError(
                    f"[Rank 0]: Rank {peer} failed to pass monitoredBarrier in {int(seconds * 1000)} ms."
                    f"\n Original exception: {e}"
                ) from e
    if missing:
        raise RuntimeError(
            f"[Rank 0]: Ranks {', '.join(map(str, missing))} failed to pass monitoredBarrier in"
            f" {int(seconds * 1000)} ms."
        )
    for peer in range(1, size):
        group._post(True, token, peer, tag, max(end - time.monotonic(), 1.0), True).wait()
