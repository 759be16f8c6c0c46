"""hvd/launcher/supervisor/planning.py: plans the CPUs and the GPU of each rank of a host, by the rules in hvd/pin.hpp.

The functions take the extension as an argument, because under mpiexec hvd cannot be imported by name.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
from dataclasses import dataclass
from typing import Any

NOTHING = "none"  # the policy that uses no GPU


@dataclass(frozen=True)
class Share:
    """The CPUs and the GPU of one rank. Fields are empty if the rank gets nothing."""

    cpus: list[int]
    cpu_list: str  # in the kernel's format: "0-3,8"
    device: str  # the GPU's UUID and PCI address
    visible: str | None  # value of CUDA_VISIBLE_DEVICES for a MIG instance, so that the process sees only that one
    reason: str
    cpu_reason: str
    problem: str  # why the rank cannot be placed

    def variables(self, policy: str | None) -> dict[str, str]:
        """Environment variables for the rank. `policy`: the policy passed to its job."""
        found = {"HVD_CPUS": self.cpu_list}
        if policy:
            # The launcher has already bound the CPUs.
            parts = [part for part in policy.split(",") if not part.startswith("cpus=")]
            found["HVD_PIN"] = ",".join(parts) or "by_local_rank"
        if self.visible is not None:
            found["CUDA_VISIBLE_DEVICES"] = self.visible
        return found


def policy_text(policy: str | None, bind: bool) -> str:
    """The policy for the plan: CPUs alone if `policy` is None; "cpus=none" is added if ranks are not bound and `policy`
    does not mention CPUs.
    """
    text = policy or NOTHING
    says_cpus = any(part.startswith("cpus=") for part in text.split(","))
    return text if bind or says_cpus else f"{text},cpus=none"


def plan(core: Any, ranks: int, policy: str, first_rank: int = 0, cores_each: int = 0) -> list[Share]:
    """The shares of the ranks of this host, numbered from `first_rank`. Raises ValueError for an invalid policy."""
    return [Share(*each) for each in core.plan_placement(ranks, policy, first_rank, cores_each)]


def plan_apart(path: str, ranks: int, policy: str, first_rank: int) -> list[Share] | str:
    """Runs `plan` in a child process, with the extension at `path`. Returns an error message if there is no plan.

    The caller then loads no CUDA driver, with its memory and threads.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            try:
                shares = [list(vars(share).values()) for share in plan(load(path), ranks, policy, first_rank)]
                answer: Any = shares
            except Exception as error:
                answer = str(error)
            with open(writing, "w", encoding="utf-8") as pipe:
                json.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:
        text = pipe.read()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    if not text:
        return "the process that plans where ranks belong was killed"
    found = json.loads(text)
    return found if isinstance(found, str) else [Share(*each) for each in found]


def load(path: str) -> Any:
    """Loads the extension from its path."""
    loader = importlib.machinery.ExtensionFileLoader("_core", path)
    spec = importlib.util.spec_from_file_location("_core", path, loader=loader)
    if spec is None:
        raise ImportError(f"{path} is not an extension module")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def describe(shares: list[Share]) -> str:
    """Describes the ranks' CPUs, as the end of a sentence that begins with "ranks are"."""
    reasons = sorted({share.cpu_reason for share in shares})
    lists = ", ".join(f"rank {r} on CPUs {share.cpu_list}" for r, share in enumerate(shares) if share.cpus)
    return " or ".join(reasons) + (f": {lists}" if lists else "")
