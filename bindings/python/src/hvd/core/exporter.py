"""HVD_METRICS: exports this rank's counters in Prometheus's text format, to a file or on a local port."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hmac
import os
import secrets
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

from hvd.core import state
from hvd.descriptors import above_streams
from hvd.exceptions import HorovodInternalError

PERIOD = 5.0  # seconds between two writes of the file
ADDRESS = "127.0.0.1"
_COUNTERS = {  # for each kind of operation and process set
    "operations": "Operations that have ended.",
    "failed": "Operations that have ended with an error.",
    "bytes": "Bytes of this rank's inputs.",
    "waits": "How often the program has waited for an operation.",
    "exposed_seconds": "How long the program has waited for operations.",
}
_TOTALS = {
    "steps": "Steps that the program or its optimizer has marked.",
    "samples": "Samples of these steps.",
    "stalls": "Reports of operations that do not end.",
    "dropped_events": "Events that are missing in the timeline.",
}
_GAUGES = {"in_flight": "Operations in flight.", "oldest_seconds": "How long the first of them has been in flight."}

_exporter: Exporter | None = None


class Exporter:
    """Publishes the result of ``read()``, such as hvd.metrics, until the process ends."""

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self._read = read
        self._last: dict[str, Any] = {}
        self._owner = os.getpid()
        self._over = threading.Event()

    def read(self) -> dict[str, Any]:
        """The counters. Between jobs, and after the last one, returns their values at the job's end."""
        with contextlib.suppress(ValueError, SystemExit, HorovodInternalError):
            self._last = self._read()
        return self._last

    def collect(self) -> Iterator[Any]:
        """The metrics for a registry of prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        values = self.read()
        if not values:
            return
        rank = str(values["rank"])
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"hvd_{name}", text, labels=["rank", "kind", "process_set"])
            for one in values["operations"]:
                counter.add_metric([rank, one["kind"], str(one["process_set"])], one[name])
            yield counter
        for name, text in _TOTALS.items():
            total = CounterMetricFamily(f"hvd_{name}", text, labels=["rank"])
            total.add_metric([rank], values[name])
            yield total
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"hvd_{name}", text, labels=["rank"])
            gauge.add_metric([rank], values[name])
            yield gauge
        size = GaugeMetricFamily("hvd_size", "Ranks of the job.", labels=["rank"])
        size.add_metric([rank], values["size"])
        yield size

    def registry(self) -> Any:
        """A registry of prometheus_client with only these metrics."""
        from prometheus_client import CollectorRegistry

        made = CollectorRegistry(auto_describe=False)
        made.register(self)
        return made

    # ---- a file ----

    def write_file(self, path: Path) -> None:
        """Writes the file every few seconds and when the process ends. Raises OSError if it cannot be written now."""
        from prometheus_client import write_to_textfile

        registry = self.registry()

        @above_streams()
        def write() -> None:
            write_to_textfile(str(path), registry)

        def work() -> None:
            while not self._over.wait(PERIOD):
                with contextlib.suppress(OSError):  # a full disk: the next time may be better
                    write()

        def last() -> None:
            if os.getpid() == self._owner:
                self._over.set()
                worker.join(2 * PERIOD)  # an older file must not replace the last one
                with contextlib.suppress(OSError):
                    write()

        write()
        worker = threading.Thread(target=work, name="hvd-metrics", daemon=True)
        worker.start()
        atexit.register(last)

    # ---- a port ----

    def serve(self, port: int, token: str) -> int:
        """Answers GET /metrics with this token, on localhost. Returns the port. Raises OSError if it is taken."""
        import tornado.httpserver
        import tornado.netutil
        import tornado.web
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        registry = self.registry()
        expected = f"Bearer {token}".encode()

        class Metrics(tornado.web.RequestHandler):
            def get(self) -> None:
                given = self.request.headers.get("Authorization", "").encode()
                if not hmac.compare_digest(given, expected):
                    self.set_status(403)
                    self.set_header("Content-Type", "text/plain; charset=utf-8")
                    self.finish("this port needs the header Authorization: Bearer TOKEN, with the token of the file\n")
                    return
                self.set_header("Content-Type", CONTENT_TYPE_LATEST)
                self.finish(generate_latest(registry))

        sockets = tornado.netutil.bind_sockets(port, ADDRESS)
        application = tornado.web.Application([("/metrics", Metrics)], log_function=lambda handler: None)

        @above_streams()
        def serve_on() -> None:
            asyncio.run(work())

        async def work() -> None:
            tornado.httpserver.HTTPServer(application).add_sockets(sockets)
            await asyncio.Event().wait()

        threading.Thread(target=serve_on, name="hvd-metrics", daemon=True).start()
        bound: int = sockets[0].getsockname()[1]
        return bound


def file_of(path: str, rank: int) -> Path:
    """Adds the rank to a file name: metrics.prom becomes metrics.rank3.prom."""
    whole = Path(path)
    return whole.with_name(f"{whole.stem}.rank{rank}{whole.suffix}")


@above_streams()
def start(rank: int, local_rank: int, read: Callable[[], dict[str, Any]]) -> None:
    """Starts the export set by HVD_METRICS, once in a process. Failures are reported and do not stop the training.

    A number is a port, plus the local rank; 0 selects any free port. Only requests with a token are answered: the token
    in the file HVD_METRICS_TOKEN_FILE, or one in a new file. Any other value is a file name, to which each rank adds
    its number.
    """
    global _exporter
    asked = os.environ.get("HVD_METRICS", "")
    if not asked or _exporter is not None:
        return
    _exporter = Exporter(read)
    state.before_shutdown(_exporter.read)
    try:
        if asked.isdecimal():
            _serve(_exporter, asked, rank, local_rank)
        else:
            _exporter.write_file(file_of(asked, rank))
    except (OSError, ValueError, ImportError) as error:
        why = getattr(error, "strerror", None) or str(error)
        if isinstance(error, ImportError):
            why = f"they need {error.name}: pip install 'hvd[page]'"
        _say(f"rank {rank}: HVD_METRICS={asked}: no metrics: {why}; the job goes on without them")


def _serve(exporter: Exporter, asked: str, rank: int, local_rank: int) -> None:
    port = int(asked) + local_rank if int(asked) else 0
    if port > 65535:
        raise ValueError(f"{port} is not a port, from 1 to 65535")
    given = os.environ.get("HVD_METRICS_TOKEN_FILE", "")
    if given:
        token = Path(given).read_text().strip()
        if not token:
            raise ValueError(f"HVD_METRICS_TOKEN_FILE={given} is empty")
    else:
        token = secrets.token_urlsafe(32)
    try:
        bound = exporter.serve(port, token)
    except OSError as error:
        raise ValueError(f"port {port} of {ADDRESS} cannot be used: {error.strerror}") from None
    if not given:
        number, given = tempfile.mkstemp(prefix="hvd-metrics-", suffix=".token")  # readable by this user only
        with os.fdopen(number, "w") as file:
            file.write(token)
        atexit.register(_remove, given, os.getpid())
    _say(f"rank {rank}: metrics are at http://{ADDRESS}:{bound}/metrics, with the bearer token in {given}")


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _say(text: str) -> None:
    print(f"hvd: {text}", file=sys.stderr, flush=True)
