"""hvd/launcher/supervisor/planning.py: what each rank of a host is pinned to, which the headers decide (hvd/pin.hpp).

The extension is given to the functions here: under mpiexec nothing of hvd can be imported by its name.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
from dataclasses import dataclass
from typing import Any

NOTHING = "none"  # the policy that looks at no GPU


@dataclass(frozen=True)
class Share:
    """What one rank gets; empty where it gets nothing."""

    cpus: list[int]
    cpu_list: str  # as the kernel writes them: "0-3,8"
    device: str  # its UUID and PCI address
    visible: str | None  # for CUDA_VISIBLE_DEVICES: a MIG instance, which a process sees alone
    reason: str
    cpu_reason: str
    problem: str  # why it cannot be placed

    def variables(self, policy: str | None) -> dict[str, str]:
        """What the rank finds in its environment; `policy` is what its job was given."""
        found = {"HVD_CPUS": self.cpu_list}
        if policy:
            # The launcher has bound the CPUs.
            parts = [part for part in policy.split(",") if not part.startswith("cpus=")]
            found["HVD_PIN"] = ",".join(parts) or "by_local_rank"
        if self.visible is not None:
            found["CUDA_VISIBLE_DEVICES"] = self.visible
        return found


def policy_text(policy: str | None, bind: bool) -> str:
    """What a launcher plans by: without a policy it looks at CPUs alone, and without a word on CPUs it binds them."""
    text = policy or NOTHING
    says_cpus = any(part.startswith("cpus=") for part in text.split(","))
    return text if bind or says_cpus else f"{text},cpus=none"


def plan(core: Any, ranks: int, policy: str, first_rank: int = 0, cores_each: int = 0) -> list[Share]:
    """The shares of the ranks of this host, which count from `first_rank`; ValueError for an invalid policy."""
    return [Share(*each) for each in core.plan_placement(ranks, policy, first_rank, cores_each)]


def plan_apart(path: str, ranks: int, policy: str, first_rank: int) -> list[Share] | str:
    """The same in a process of its own, with the extension at `path`; or the sentence that says why there is no plan.

    The caller stays without the CUDA driver, its memory and its threads.
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
    """The extension, by its path."""
    loader = importlib.machinery.ExtensionFileLoader("_core", path)
    spec = importlib.util.spec_from_file_location("_core", path, loader=loader)
    if spec is None:
        raise ImportError(f"{path} is no extension")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def describe(shares: list[Share]) -> str:
    """A sentence on what ranks are bound to, after "ranks are "."""
    reasons = sorted({share.cpu_reason for share in shares})
    lists = ", ".join(f"rank {r} on CPUs {share.cpu_list}" for r, share in enumerate(shares) if share.cpus)
    return " or ".join(reasons) + (f": {lists}" if lists else "")
