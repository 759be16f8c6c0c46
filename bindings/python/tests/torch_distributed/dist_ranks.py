"""Ranks for tests of torch.distributed, which stay from test to test.

As a program this is the process from which they are forked, which has imported PyTorch.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import rank_jobs  # noqa: E402
from rank_worker import answer_requests  # noqa: E402

TIMEOUT = 40.0  # of the groups of ranks, in seconds: below LIMIT, so that what hangs says for whom it waits
_NOT_INHERITED = ("HOROVOD_", "HVD_", "PMI_", "OMPI_", "SLURM_", "TORCH_DISTRIBUTED_", "MASTER_", "RANK", "WORLD_SIZE")


# --- In the process of the tests --------------------------------------------------------------------------------------

SOURCE = rank_jobs.Source(Path(__file__), _NOT_INHERITED, {})


class Ranks(rank_jobs.Ranks):
    """Processes that run functions of test modules, in a process group "hvd" unless ``joined`` is False: then they are
    told their place only by RANK and WORLD_SIZE, as torchrun does. ``whole_exit``: they take the interpreter down at
    their end, which lasts; else they call what is registered for it, and no more.
    """

    def __init__(self, size: int, joined: bool = True, whole_exit: bool = False, **environment: str) -> None:
        super().__init__(size)
        self._source = SOURCE
        self.joined = joined
        self.whole_exit = whole_exit
        self.environment = environment

    def _prepare(self, file: str) -> None:
        """Ranks import what they run, and stay."""

    def _request(self) -> dict[str, Any]:
        own = tempfile.mkdtemp(prefix="hvd-ranks-")
        atexit.register(shutil.rmtree, own, True)
        place = {"WORLD_SIZE": str(self.size), "HVD_TEST_FOLDER": own, **self.environment}
        return {"joined": self.joined, "environments": [{"RANK": str(rank), **place} for rank in range(self.size)]}


# --- In a rank --------------------------------------------------------------------------------------------------------


def place() -> tuple[int, int]:
    """This rank's number, and how many there are."""
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def folder() -> Path:
    """A directory of these ranks, empty at first."""
    return Path(os.environ["HVD_TEST_FOLDER"])


def join(name: str = "store", seconds: float = TIMEOUT, **more: Any) -> None:
    """Makes the default group, over a file that ranks give the same name."""
    import torch.distributed as dist

    rank, size = place()
    more.setdefault("store", dist.FileStore(str(folder() / name), size))
    dist.init_process_group("hvd", rank=rank, world_size=size, timeout=timedelta(seconds=seconds), **more)


def same(result: Any, expected: Any) -> None:
    """Compares types, shapes and bits."""
    import torch

    assert result.dtype == expected.dtype and result.shape == expected.shape, (result, expected)
    plain = [t.detach().resolve_conj().resolve_neg().reshape(-1) for t in (result, expected)]
    left, right = (t.clone(memory_format=torch.contiguous_format).view(torch.uint8) for t in plain)
    assert torch.equal(left, right), (result, expected)


def begin(request: dict[str, Any]) -> None:
    """What a rank does first."""
    import torch.distributed as dist

    dist.set_debug_level_from_env()
    if request["joined"]:
        join()


def main() -> None:
    """Forks ranks until the socket is closed."""
    import warnings

    import torch._dynamo  # DistributedDataParallel and gradients of functional collectives import it
    import torch.distributed._functional_collectives
    import torch.distributed.nn.functional  # noqa: F401

    import hvd.torch.distributed.process_group  # noqa: F401

    warnings.simplefilter("ignore")  # PyTorch tells of new names of its functions
    answer_requests(begin)


if __name__ == "__main__":
    main()
