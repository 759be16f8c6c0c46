"""hvd/timeline/server.py: the page of a timeline, and what it asks for, over HTTP.

All but the page's own assets needs the token that is in the page's address. Nothing is written, and only files that
the watched folder has are read.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hmac
import ipaddress
import json
import socket
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Callable, cast
from urllib.parse import urlsplit

from tornado import iostream, web
from tornado.httpserver import HTTPServer
from tornado.log import app_log

if TYPE_CHECKING:
    from hvd.timeline.watched import Watched

PAGE = Path(__file__).with_name("page")
MOST_ASKED = 4096  # columns of a timeline, and characters of a search
MOST_RANKS = 1 << 20
MOST_US = 1e15  # of a time, as the index has it
CHUNK = 1 << 18  # bytes of a download that are on their way
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "hvd",
}


class Site:
    """Shared by the handlers: the token, the watched files, and a thread for what takes longer."""

    def __init__(self, watched: Watched, token: str, any_name: bool = False, names: Sequence[str] = ()) -> None:
        """`any_name`: behind a proxy, whose name may come in the header Host. `names`: others than those of this host."""
        self.watched = watched
        self.token = token.encode()
        self.any_name = any_name
        self.names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in names)}
        self.asked = 0.0  # when somebody has asked last, by time.monotonic()
        self.pool = concurrent.futures.ThreadPoolExecutor(2, "hvd-timeline-answer")

    def knows(self, host: str) -> bool:
        """Whether a request may be for this host: no page of another site that has rebound its name to this address."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:  # as of a bracket that is not closed
            return self.any_name
        if self.any_name or name in self.names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class Handler(web.RequestHandler):
    """Checks host and token; errors are sentences."""

    open_to_all = False

    def initialize(self, site: Site) -> None:
        """Takes what the handlers share."""
        self.site = site

    def set_default_headers(self) -> None:
        """No page of another origin may use what is sent, and nothing of it is kept."""
        for name, value in HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> Awaitable[None] | None:
        """Refuses what has no token, or another name of this host."""
        if not self.site.knows(self.request.host):
            raise web.HTTPError(403, reason="Forbidden", log_message="host")
        if not self.open_to_all and not hmac.compare_digest(self.given(), self.site.token):
            raise web.HTTPError(403, reason="Forbidden", log_message="token" if self.given() else "none")
        self.site.asked = time.monotonic()
        return None

    def given(self) -> bytes:
        """The token of the request, empty if it has none."""
        header = self.request.headers.get("Authorization", "")
        words = header.split(None, 1)
        if len(words) == 2 and words[0].lower() in ("token", "bearer"):
            return words[1].strip().encode("utf-8", "replace")
        found = self.request.query_arguments.get("token", [b""])
        return found[-1].strip()

    def sentence(self, status: int, error: BaseException | None) -> str:
        """The reason for refusing a request."""
        if status == 403 and isinstance(error, web.HTTPError):
            if error.log_message == "host":
                return (
                    "The request has a host name that this server does not know. Use the address that was printed, or "
                    "start hvd-timeline with --proxy if it is behind a proxy."
                )
            if error.log_message == "none":
                return "The token is missing. Use the whole address that was printed, with ?token=... at its end."
            return "The token is wrong: it changes with each start. Use the address that was printed last."
        if status == 400 and isinstance(error, web.HTTPError):
            said = error.log_message or "The request is not understood."
            return said % error.args if error.args else said
        if status == 404:
            return "There is nothing here. The page is at the address that was printed."
        if status == 405:
            return "Only GET, HEAD and OPTIONS are answered."
        return "The server has failed to answer."

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """One sentence, as text."""
        error = (kwargs.get("exc_info") or (None, None, None))[1]
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(self.sentence(status_code, error) + "\n")

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        """Says what is wrong; an answer that has begun is broken off, so that nobody takes it for a whole one."""
        if not self._headers_written:
            super().send_error(status_code, **kwargs)
            return
        self._finished = True
        cast(Any, self.request.connection).stream.close()

    def log_exception(self, *args: Any) -> None:
        """Prints no refused requests, but errors of this program, without the token in the request's address.
        """
        if not isinstance(args[1], (web.HTTPError, iostream.StreamClosedError)):
            app_log.error("%s %s has failed", self.request.method, self.request.path, exc_info=cast(Any, args))

    def options(self, *_: Any) -> None:
        """The methods that may be used."""
        self.set_status(204)
        self.set_header("Allow", "GET, HEAD, OPTIONS")

    async def head(self, *arguments: str) -> None:
        """As GET; the body is not sent."""
        answer = getattr(self, "get")(*arguments)
        if answer is not None:
            await answer

    def number(self, name: str, otherwise: str = "") -> float:
        """An argument that is a finite number."""
        text = self.get_query_argument(name, otherwise) or ""
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not abs(value) < 1e18:
            raise web.HTTPError(400, f"{name}={text[:40]!r} must be a number.")
        return value

    def time(self, name: str) -> float:
        """An argument that is a time, in microseconds."""
        value = self.number(name)
        if not abs(value) < MOST_US:
            raise web.HTTPError(400, f"{name}={value:g} must be a time in microseconds, below 10^15.")
        return value

    async def answer(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Sends what a function returns, as JSON; it runs on another thread."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self.site.pool, function, *arguments)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(found, separators=(",", ":"), allow_nan=False))


class Page(Handler):
    """The page itself."""

    def get(self) -> None:
        """Sends it. Its addresses are relative, so it may lie below any path of a proxy."""
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish((PAGE / "index.html").read_bytes())


class Asset(Handler):
    """Scripts and styles of the page, the same for everybody."""

    open_to_all = True
    types = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}

    def get(self, name: str) -> None:
        """Sends one of the files that the package has; a name is never a path."""
        path = PAGE / name
        if name not in {file.name for file in PAGE.iterdir()} or path.suffix not in self.types:
            raise web.HTTPError(404)
        self.set_header("Content-Type", self.types[path.suffix])
        self.finish(path.read_bytes())


class Answers(Handler):
    """The answers shown at the top: see hvd.timeline.answers."""

    async def get(self) -> None:
        """Sends it."""
        await self.answer(self.site.watched.answers)


class Timeline(Handler):
    """The operations of a span of time."""

    async def get(self) -> None:
        """Sends them one by one, or where they are too many what share of each column they fill."""
        begin, end = self.time("from"), self.time("to")
        width = int(min(max(self.number("width", "1000"), 1), MOST_ASKED))
        rank = int(self.number("rank")) if self.get_query_argument("rank", "") else None
        if rank is not None and not 0 <= rank < MOST_RANKS:
            raise web.HTTPError(400, f"rank={rank} must be the number of a rank.")
        if end <= begin:
            raise web.HTTPError(400, "from must be before to.")
        await self.answer(self.site.watched.timeline, begin, end, width, rank)


class Search(Handler):
    """Tensors by a part of their names."""

    async def get(self) -> None:
        """Sends those that have the text in their names, the busiest first."""
        text = self.get_query_argument("text", "", strip=False)[:MOST_ASKED]
        await self.answer(self.site.watched.search, text)


class Merged(Handler):
    """One file of all, which Chrome and Perfetto open."""

    async def head(self, *arguments: str) -> None:
        """Says what kind of file it is; how long is not known before."""
        self.describe()

    def describe(self) -> None:
        self.set_header("Content-Type", "application/json")
        self.set_header("Content-Disposition", 'attachment; filename="hvd-timeline.json"')

    async def get(self) -> None:
        """Sends the file while it is made."""
        self.describe()
        loop = asyncio.get_running_loop()
        out = _Outgoing(self, loop)
        await loop.run_in_executor(None, self.site.watched.merge, cast(IO[bytes], out))
        await out.flush_rest()


class _Outgoing:
    """A file to write to on another thread; its bytes go to a client as fast as that takes them."""

    def __init__(self, handler: web.RequestHandler, loop: asyncio.AbstractEventLoop) -> None:
        self._handler, self._loop, self._held = handler, loop, bytearray()

    def write(self, data: bytes) -> int:
        self._held += data
        if len(self._held) >= CHUNK:
            asyncio.run_coroutine_threadsafe(self.flush_rest(), self._loop).result()
        return len(data)

    async def flush_rest(self) -> None:
        data, self._held = bytes(self._held), bytearray()
        self._handler.write(data)
        await self._handler.flush()


class Nothing(Handler):
    """All other addresses."""

    open_to_all = True

    def get(self) -> None:
        """Says that there is nothing."""
        raise web.HTTPError(404)


def application(site: Site) -> web.Application:
    """All that is answered."""
    shared = {"site": site}
    return web.Application(
        [
            ("/", Page, shared),
            ("/page/([a-z_]+[.][a-z]+)", Asset, shared),
            ("/api/answers", Answers, shared),
            ("/api/timeline", Timeline, shared),
            ("/api/search", Search, shared),
            ("/api/merged", Merged, shared),
            ("/.*", Nothing, shared),
        ],
        default_handler_class=Nothing,
        default_handler_args=shared,
        log_function=lambda handler: None,
        compress_response=False,
    )


async def serve(
    site: Site, opened: socket.socket, until: Callable[[], bool] = lambda: False, period: float = 1.0
) -> None:
    """Answers until `until()` is true, which is asked once in `period` seconds."""
    server = HTTPServer(application(site), max_body_size=1 << 16, max_header_size=1 << 16)
    opened.setblocking(False)
    server.add_sockets([opened])
    try:
        while not until():
            await asyncio.sleep(period)
    finally:
        server.stop()
        site.pool.shutdown(wait=False, cancel_futures=True)

