"""hvd/timeline/listening.py: where the page of a timeline is."""

from __future__ import annotations

import errno
import socket


def listen(host: str, port: int) -> socket.socket:
    """A socket on which the page will be; ValueError says why there is none. `port` 0 is any free one."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(where)
            opened.listen(128)
        except BaseException:
            opened.close()
            raise
    except OSError as error:
        if isinstance(error, socket.gaierror):
            raise ValueError(f"--host {host}: there is no such host here") from None
        why = {errno.EADDRINUSE: "another program uses it; --port 0 takes any free one"}.get(error.errno or 0, error.strerror)
        raise ValueError(f"port {port} on {host} cannot be used: {why}") from None
    return opened


def address(opened: socket.socket, token: str, proxied: str = "") -> str:
    """The address of the page. `proxied`: what stands before it behind a proxy, with {port} where the port belongs."""
    host, port = opened.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    start = proxied.replace("{port}", str(port)) if proxied else f"http://{f'[{host}]' if ':' in host else host}:{port}"
    return f"{start.rstrip('/')}/?token={token}"
