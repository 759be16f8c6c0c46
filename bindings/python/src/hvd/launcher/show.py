"""hvd/launcher/show.py: hvdrun --show-placement: prints the place of each rank, as a table. On other hosts, `python -m
hvd.launcher.show` prints the rows of one host.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvd.launcher.errors import LaunchError
from hvd.launcher.supervisor import planning

HEADER = ("rank", "host", "GPU", "CPUs", "reason")


@dataclass(frozen=True)
class Row:
    """The place of one rank. `without`: why it has no GPU. `problem`: why it could not be started."""

    cells: list[str]
    without: str
    problem: str


def rows_of(host: str, first_rank: int, ranks: int, pin: str | None, bind: bool | int) -> list[Row]:
    """The rows of this host. Raises ValueError for an invalid policy.

    Without a policy, hvdrun places ranks on CPUs only. The GPUs are then those that hvd.pin() and hvd.local_device()
    would choose.
    """
    try:
        from hvd import _core
    except ImportError as error:
        raise LaunchError(f"--show-placement needs the extension of hvd, which cannot be loaded: {error}") from None
    each = 0 if isinstance(bind, bool) else bind
    shares = planning.plan(_core, ranks, planning.policy_text(pin, bind is not False), first_rank, each)
    devices = shares if pin else planning.plan(_core, ranks, "by_local_rank,cpus=none", first_rank)
    rows = []
    for rank, (share, device) in enumerate(zip(shares, devices), first_rank):
        placed = bool(device.device) and not device.problem
        cells = [str(rank), host, device.device if placed else "-", share.cpu_list or "all"]
        cells.append((f"GPU: {device.reason}; " if placed else "") + f"CPUs: {share.cpu_reason}")
        without = "" if placed else device.problem or device.reason
        rows.append(Row(cells, without, share.problem))
    return rows


def show_placement(
    places: Sequence[tuple[str, int]],
    pin: str | None,
    bind: bool | int,
    several: bool,
    env: Mapping[str, str],
    timeout: float,
    chosen: Any,
) -> int:
    """Prints the table for the ranks of all hosts, and why ranks have no GPU. Returns 1 if one could not be started."""
    if several:
        rows = rows_elsewhere(places, pin, bind, env, timeout, chosen)
    else:
        host = places[0][0] if len(places) == 1 else "localhost"
        rows = rows_of(host, 0, sum(count for _, count in places), pin, bind)
    table = [list(HEADER), *(row.cells for row in rows)]
    widths = [max(len(cells[i]) for cells in table) for i in range(len(HEADER) - 1)]
    for cells in table:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths)), cells[-1]]))
    for why in dict.fromkeys(row.without for row in rows if row.without):
        ranks = [row.cells[0] for row in rows if row.without == why]
        print(f"no GPU for {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranks)}: {why}")
    return 1 if any(row.problem for row in rows) else 0


def rows_elsewhere(
    places: Sequence[tuple[str, int]],
    pin: str | None,
    bind: bool | int,
    env: Mapping[str, str],
    timeout: float,
    chosen: Any,
) -> list[Row]:
    """The rows of several hosts. One rank on each prints its host's rows."""
    from hvd.launcher.across import run_across

    printed: dict[int, str] = {}

    def collect(rank: int, stream: str, piece: str) -> None:
        if stream == "stdout":
            printed[rank] = printed.get(rank, "") + piece

    order = json.dumps({"places": list(places), "pin": pin, "bind": bind})
    plain = {name: value for name, value in env.items() if name != "HVD_PIN"}
    run_across(
        [sys.executable, "-m", "hvd.launcher.show", order],
        [(name, 1) for name, _ in places],
        env=plain,
        on_line=collect,
        bind=False,
        start_timeout=timeout,
        ssh_port=chosen.ssh_port,
        ssh_identity=chosen.ssh_identity_file,
        interfaces=chosen.network_interfaces.split(",") if chosen.network_interfaces else (),
        mpi_args=chosen.mpi_args or (),
    )
    return [Row(*row) for rank in sorted(printed) for row in json.loads(printed[rank])]


def main() -> int:
    """Prints the rows of this host, one of those in the order."""
    order = json.loads(sys.argv[1])
    index = int(os.environ["HOROVOD_RANK"])
    name, ranks = order["places"][index]
    first = sum(count for _, count in order["places"][:index])
    rows = rows_of(name, first, ranks, order["pin"], order["bind"])
    print(json.dumps([[row.cells, row.without, row.problem] for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
