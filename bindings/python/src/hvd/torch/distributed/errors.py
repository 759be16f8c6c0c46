"""Translates hvd's errors to those documented by torch.distributed."""

from __future__ import annotations

import torch.distributed as dist

from hvd.exceptions import HorovodInternalError

_HVD_REMEDY = "(raise HVD_TIMEOUT or failure_policy::timeout if it is only slow)"
_REMEDY = "(give init_process_group or new_group a longer timeout if it is only slow)"


def translate(error: HorovodInternalError, what: str, ranks: list[int]) -> Exception:
    """The exception for a failed operation ``what`` of a group. ``ranks``: the group's ranks in the job.

    DistBackendError, a RuntimeError, for a lost or silent rank and for mismatched calls. Its text names the rank.
    """
    text = str(error).removeprefix("hvd: ").replace(_HVD_REMEDY, _REMEDY)
    if error.kind == "timeout" and "Timed out" not in text:
        text = f"Timed out waiting for an answer: {text}"
    if 0 <= error.rank < len(ranks) and ranks[error.rank] != error.rank:
        text += f" (rank {error.rank} of this group is rank {ranks[error.rank]} of the job)"
    made = dist.DistBackendError(f"hvd: {what}: {text}")
    made.__cause__ = error
    return made
