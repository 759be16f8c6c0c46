"""hvd/launcher/supervisor/interfaces.py: the network interfaces of a job on several hosts, as named by its user, and as
read by NCCL, Gloo, UCX and libfabric.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence


def named(environ: Mapping[str, str]) -> list[str]:
    """The interfaces named by HVD_NETWORK_INTERFACES. There is then no search, and no other interface is used."""
    return stripped(environ.get("HVD_NETWORK_INTERFACES", "").split(","))


def stripped(names: Iterable[str]) -> list[str]:
    """The names without surrounding blanks."""
    return [name.strip() for name in names if name.strip()]


def of_this_host(names: Sequence[str], host: str) -> tuple[list[str], str]:
    """The named interfaces that this host has (others may be on other hosts), and an error text if it has none."""
    there = [name for _, name in socket.if_nameindex()]
    here = [name for name in names if name in there]
    problem = f"the network interfaces {', '.join(names)} are named, and {host} has only {', '.join(there)}"
    return here, "" if here else problem


def variables(names: Sequence[str], ports: Sequence[str] = ()) -> dict[str, str]:
    """The variables that make NCCL, Gloo, UCX and libfabric use these interfaces of a host, and UCX these InfiniBand
    `ports` (see devices in hvd/remote/network.py).
    """
    return {
        "NCCL_SOCKET_IFNAME": "=" + ",".join(names),  # with =, because NCCL otherwise matches prefixes of names
        "GLOO_SOCKET_IFNAME": ",".join(names),
        "UCX_NET_DEVICES": ",".join([*ports, *names]),  # it excludes all devices that are not in the list
        "FI_TCP_IFACE": names[0],  # libfabric's TCP accepts one, and fails if the host does not have it
    }
