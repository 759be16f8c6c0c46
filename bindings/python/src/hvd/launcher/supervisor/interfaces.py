"""hvd/launcher/supervisor/interfaces.py: the network interfaces of a job on several hosts, as its user names them, and
as NCCL, Gloo, UCX and libfabric read them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence


def named(environ: Mapping[str, str]) -> list[str]:
    """The interfaces that HVD_NETWORK_INTERFACES names; nothing is looked for then, and nothing else used."""
    return stripped(environ.get("HVD_NETWORK_INTERFACES", "").split(","))


def stripped(names: Iterable[str]) -> list[str]:
    """The names without blanks around them."""
    return [name.strip() for name in names if name.strip()]


def of_this_host(names: Sequence[str], host: str) -> tuple[list[str], str]:
    """Those of the named interfaces that this host has: others may be on other hosts. And what is wrong without any."""
    there = [name for _, name in socket.if_nameindex()]
    here = [name for name in names if name in there]
    problem = f"the network interfaces {', '.join(names)} are named, and {host} has only {', '.join(there)}"
    return here, "" if here else problem


def variables(names: Sequence[str], ports: Sequence[str] = ()) -> dict[str, str]:
    """The variables that make NCCL, Gloo, UCX and libfabric use these interfaces of a host, and UCX these InfiniBand
    `ports` (see devices in hvd/remote/network.py).
    """
    return {
        "NCCL_SOCKET_IFNAME": "=" + ",".join(names),  # with =, because NCCL takes a name for the beginning of one
        "GLOO_SOCKET_IFNAME": ",".join(names),
        "UCX_NET_DEVICES": ",".join([*ports, *names]),  # it leaves out all that is not in the list
        "FI_TCP_IFACE": names[0],  # libfabric's TCP takes one, and fails where the host does not have it
    }
