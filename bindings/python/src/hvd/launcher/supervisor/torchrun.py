"""hvd/launcher/supervisor/torchrun.py: torchrun's variables, with which Lightning, Accelerate and Hugging Face's
Trainer find the ranks of a job, and the port in MASTER_PORT.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, MutableMapping

PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
RUN = "TORCHELASTIC_RUN_ID"
RESTART = "HVD_RESTART"
_AGENT = ("TORCHELASTIC_", "ROLE_")  # prefixes of the other variables set by torchrun's agent


def place_variables(place: Mapping[str, str], host: int, hosts: int) -> dict[str, str]:
    """RANK and related variables, from a rank's HOROVOD_RANK and related variables, on one of `hosts` hosts."""
    same = ["HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"]
    return dict(zip(PLACE, (*(place[name] for name in same), str(host), str(hosts))))


def restart_variables(number: int, most: int) -> dict[str, str]:
    """Which start of the ranks this is, 0 for the first, and how many restarts may follow it."""
    return {RESTART: str(number), "TORCHELASTIC_RESTART_COUNT": str(number), "TORCHELASTIC_MAX_RESTARTS": str(most)}


def remove_outer(env: MutableMapping[str, str]) -> str:
    """Removes the variables of a launcher around this one. Returns a sentence for the user: "" if there are none, or if
    hvd has set them. Keeps MASTER_ADDR and MASTER_PORT if no rank is set, because then the user has set them.
    """
    found = [name for name in (*PLACE, RUN) if name in env]
    if not found:
        return ""
    own = RUN in env and env[RUN] == env.get("HVD_JOB")
    found += [name for name in (ADDRESS, PORT) if name in env]
    listed = ", ".join(f"{name}={env[name][:80]}" for name in found)
    for name in [name for name in env if name in found or name.startswith(_AGENT)]:
        del env[name]
    return "" if own else f"another launcher has set {listed}: the ranks get the values of this job instead"


def meeting(env: Mapping[str, str], address: str, stack: contextlib.ExitStack) -> dict[str, str]:
    """MASTER_ADDR and MASTER_PORT: the user's in `env`, or else an address of this host, which is the first, and a port
    that is kept free until `stack` ends.
    """
    port = env.get(PORT) or str(stack.enter_context(keep_port()).getsockname()[1])
    return {ADDRESS: env.get(ADDRESS) or address, PORT: port}


def keep_port(port: int = 0) -> socket.socket:
    """Reserves a port, by default any, until the socket is closed. Raises OSError if it is in use.

    A program can listen on it if it uses the port's number and sets SO_REUSEADDR, as the store of torch.distributed
    does. The kernel assigns it to nobody else.
    """
    with contextlib.suppress(OSError):  # no IPv6
        return _bound(socket.AF_INET6, port)
    return _bound(socket.AF_INET, port)


def _bound(family: socket.AddressFamily, port: int) -> socket.socket:
    kept = socket.socket(family)
    try:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            kept.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        kept.bind(("", port))
    except OSError:
        kept.close()
        raise
    return kept
