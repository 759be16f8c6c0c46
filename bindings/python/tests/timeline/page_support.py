"""What the tests of the timeline's page share: timelines that are written here, servers, and a browser."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import hvd.timeline

LIMIT = 60.0  # seconds, for what would otherwise hang
TENSORS = ("conv1.bias", "conv1.weight", "conv2.bias", "conv2.weight", "fc.bias", "fc.weight")
HOSTILE = (
    "<img src=x onerror=\"document.title='executed'\">",
    "</script><script>document.title='executed'</script>",
    "\"quotes\" 'and' `more`",
    "two\nlines\tand a tab",
    "emoji 🚀 and \u202eturned around",
    "javascript:document.title='executed'",
    "a" * 300,
)
T = TypeVar("T")


def environment(**more: str) -> dict[str, str]:
    """This process's, in which hvd is the one that is tested, and nothing of a job around it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "HVD_", "PMI_"))}
    env["PYTHONPATH"] = str(Path(hvd.timeline.__file__ or "").parents[2])
    return {**env, **more}


class Writer:
    """Writes a timeline step by step, as ranks would."""

    def __init__(
        self, path: Path, ranks: int = 2, tensors: Sequence[str] = TENSORS, hosts: int = 1, job: str = "00c0ffee",
        step_us: float = 80_000.0, slow: int | None = None, age: float = 0.0,
        size: int | None = None,
    ) -> None:
        """`age`: for how many seconds the job has been running; `size`: its ranks, if others than these. Rank `slow` submits
        later than the others.
        """
        self.path, self.ranks, self.tensors, self.step_us, self.slow = path, ranks, tensors, step_us, slow
        self.steps = 0
        start = int((time.time() - age) * 1e6)
        events: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": 0,
             "args": {"name": "hvd", "job": job, "start_time_since_epoch_in_micros": start}},
            {"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},
        ]  # fmt: skip
        for rank in range(ranks):
            host = f"node{rank * hosts // ranks + 1}"
            args = {"rank": rank, "size": size or ranks, "host": host, "process": 4000 + rank}
            events.append({"ph": "M", "pid": 0, "tid": rank, "name": "hvd_rank", "args": args})
            for number, tensor in enumerate(tensors):
                events.append({"ph": "M", "pid": number + 1, "tid": rank, "name": "process_name", "args": {"name": tensor}})
                events.append({"ph": "M", "pid": number + 1, "tid": rank, "name": "thread_name", "args": {"name": f"rank {rank}"}})
        self.path.write_bytes(b"[\n" + self._lines(events) + b"\n]\n")

    @staticmethod
    def _lines(events: list[dict[str, Any]]) -> bytes:
        return b",\n".join(json.dumps(event, separators=(",", ":")).encode() for event in events)

    def append(self, events: list[dict[str, Any]]) -> None:
        """Appends events; the file is complete JSON afterwards."""
        with open(self.path, "r+b") as file:
            file.seek(-3, os.SEEK_END)
            file.write(b",\n" + self._lines(events) + b"\n]\n")

    def step(self, count: int = 1) -> None:
        """Appends steps of the job, each with one operation of each tensor."""
        events: list[dict[str, Any]] = []
        for _ in range(count):
            begin = self.steps * self.step_us
            self.steps += 1
            for number in range(len(self.tensors)):
                events += self._operation(number, begin + self.step_us * (0.2 + 0.7 * number / len(self.tensors)))
            for rank in range(self.ranks):
                # The programs of the others wait for what a slow rank is late with, as _operation says.
                share = 0.1 if self.slow is None else 0.06 if rank == self.slow else 0.06 + 0.04 * len(self.tensors)
                dur = self.step_us * share
                wait = {"args": {"tensor": self.tensors[-1]}, "dur": dur, "ts": begin + self.step_us * 0.95 - dur}
                events.append({"ph": "X", "pid": 0, "tid": rank, "name": "WAIT", **wait})
                end = {"args": {"samples": 64}, "ts": begin + self.step_us * 0.97}
                events.append({"ph": "i", "pid": 0, "tid": rank, "name": "STEP", "s": "t", **end})
        self.append(events)

    def _operation(self, number: int, begin: float) -> list[dict[str, Any]]:
        late = self.step_us * 0.04
        ready, end = begin + (late if self.slow is not None else late / 8), begin + self.step_us * 0.08
        events = []
        for rank in range(self.ranks):
            own = {"pid": number + 1, "tid": rank}
            shape = {"dtype": "float32", "shape": f"[{64 * (number + 1)}, 64]"}
            events += [
                {"ph": "B", **own, "name": "NEGOTIATE_ALLREDUCE", "ts": ready - 5 if rank == self.slow else begin},
                {"ph": "E", **own, "ts": ready},
                {"ph": "B", **own, "name": "ALLREDUCE", "ts": ready},
                {"ph": "B", **own, "name": "SHM_ALLREDUCE", "ts": ready + 40},
                {"ph": "E", **own, "ts": end},
                {"ph": "E", **own, "args": shape, "ts": end},
            ]
        return events

    def begin_only(self, number: int, ranks: Sequence[int]) -> None:
        """Lets some ranks submit an operation that the others never do."""
        ts = self.steps * self.step_us
        self.append([{"ph": "B", "pid": number + 1, "tid": rank, "name": "NEGOTIATE_ALLREDUCE", "ts": ts} for rank in ranks])


@contextlib.contextmanager
def serving(path: Path, *options: str, **env: str) -> Iterator[str]:
    """hvd-timeline for a path; yields the address of its page, and ends it by Ctrl-C."""
    command = [sys.executable, "-m", "hvd.timeline.main", str(path), *options]
    with subprocess.Popen(command, env=environment(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout and server.stderr
            line = server.stdout.readline()
            found = re.search(r"(?:http://|/)\S+\?token=\S+", line)
            assert found, line + server.stderr.read()
            yield found[0]
        finally:
            server.send_signal(signal.SIGINT)
            _, said = server.communicate(timeout=LIMIT)
            assert server.returncode == 0 and said == "", said


def get(address: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    """The status, the text and the headers of an answer."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(address, method=method, headers=names)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT) as response:
            return response.status, response.read().decode(), dict(response.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)


def api(address: str, path: str, query: str = "") -> Any:
    """An answer of the server, as an object."""
    base, _, token = address.partition("?")
    status, text, _ = get(f"{base}api/{path}?{token}&{query}")
    assert status == 200, text
    return json.loads(text)


def until(condition: Callable[[], T], seconds: float = LIMIT) -> T:
    """What a condition returns as soon as that is true."""
    limit = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def proxy(target: str, prefix: str) -> Iterator[str]:
    """What JupyterHub does: a server of another name, which has the page below a path, and a notebook with it in a frame."""
    base, _, query = target.partition("?")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body, kind = 200, f"<iframe src='{prefix}?{query}' width=900 height=700></iframe>".encode(), "text/html"
            if self.path.startswith(prefix):
                request = urllib.request.Request(base + self.path[len(prefix) :], headers={"Host": "hub.example"})
                with urllib.request.urlopen(request, timeout=LIMIT) as response:
                    status, body, kind = response.status, response.read(), response.headers["Content-Type"]
            elif self.path != "/notebook":
                status, body = 404, b""
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/notebook"
        finally:
            server.shutdown()
            thread.join()


def without_browser() -> str:
    """Why there can be no test in a browser; empty if there can."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "SKIP: selenium is not installed (tools/setup --browser)"
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        return "SKIP: there is no chromium with its driver (tools/setup --browser)"
    return ""


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def resize(driver: Any, width: int, height: int, dark: bool = False, scale: float = 1.0) -> None:
    """Gives the page a size, in pixels of its own, and a colour scheme."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def complaints(driver: Any) -> list[str]:
    """What the page has written to the browser's console."""
    return [entry["message"] for entry in driver.get_log("browser")]
