"""The server of a timeline's page: who may ask, and what is answered."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from page_support import HOSTILE, LIMIT, Writer, api, environment, get, serving, until

from hvd.timeline import watched as reading
from hvd.timeline.listening import address, listen
from hvd.timeline.server import Site, serve
from hvd.timeline.sources import Found
from hvd.timeline.watched import Watched


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a timeline, beside which lies a secret."""
    above = tmp_path_factory.mktemp("above")
    (above / "secret.json").write_text("secret")
    inside = above / "timelines"
    inside.mkdir()
    Writer(inside / "job.json").step(20)
    (inside / "notes.txt").write_text("secret")
    (inside / "link.json").symlink_to(above / "secret.json")
    return inside


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[str]:
    """The address of its page."""
    with serving(folder) as address:
        yield address


@contextlib.contextmanager
def serving_here(path: Path) -> Iterator[tuple[Watched, str]]:
    """A server in this process: what it watches, and its address."""
    site = Site(Watched(path), "t" * 32)
    over = threading.Event()
    with listen("127.0.0.1", 0) as opened:
        server = threading.Thread(target=lambda: asyncio.run(serve(site, opened, over.is_set, 0.05)))
        server.start()
        try:
            yield site.watched, address(opened, "t" * 32)
        finally:
            over.set()
            server.join()
            site.watched.close()


def parts(page: str) -> tuple[str, str]:
    base, _, query = page.partition("?")
    return base, query.partition("=")[2]


def test_the_page_has_all_that_it_needs(page: str) -> None:
    status, text, headers = get(page)
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert headers["Referrer-Policy"] == "no-referrer" and headers["X-Content-Type-Options"] == "nosniff"
    assert "://" not in text and "style=" not in text and "onclick" not in text
    base, token = parts(page)
    assert len(token) >= 32
    assets = {word.split('"')[0] for word in text.split('page/')[1:]}
    for name in sorted({f"page/{asset}" for asset in assets}):
        status, content, headers = get(base + name)
        assert status == 200 and token not in content
        assert headers["Content-Type"].startswith(("text/javascript", "text/css", "image/svg+xml"))


@pytest.mark.parametrize("path", ["", "api/answers", "api/timeline?from=0&to=1", "api/search?text=a", "api/merged"])
def test_nothing_without_the_token(page: str, path: str) -> None:
    base, token = parts(page)
    more = "&" if "?" in path else "?"
    status, text, _ = get(base + path)
    assert (status, text) == (403, "The token is missing. Use the whole address that was printed, with ?token=... at its end.\n")
    for wrong in (token[:-1], token + "a", "%C3%A9" * 9, "%ff%00"):
        status, text, _ = get(f"{base}{path}{more}token={wrong}")
        assert status == 403 and text.startswith("The token is wrong"), wrong
    assert get(base + path, Authorization="token wrong")[0] == 403
    assert get(base + path, Authorization=f"token {token}")[0] == 200
    assert get(f"{base}{path}{more}token={token}")[0] == 200


@pytest.mark.parametrize(
    "path",
    ["../secret.json", "page/../../secret.json", "page/..%2f..%2fsecret.json", "page/%2e%2e/server.py", "page//etc/passwd",
     "page/server.py", "page/style.css/..", "secret.json", "job.json", "link.json", "notes.txt", "api", "api/", "page/",
     "page/index.html"],
)  # fmt: skip
def test_no_other_file_is_sent(page: str, path: str) -> None:
    base, token = parts(page)
    host = base.split("/")[2]
    with socket.create_connection(tuple(host.split(":")), timeout=LIMIT) as raw:  # type: ignore[arg-type]
        # Clients tidy such paths before they send them.
        raw.sendall(f"GET /{path}?token={token} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 404 ") and b"secret" not in answer.replace(path.encode(), b"")
    assert answer.endswith(b"There is nothing here. The page is at the address that was printed.\n")


def test_a_link_out_of_the_folder_is_not_read(page: str) -> None:
    answers = api(page, "answers")
    assert answers["files"] == ["job.json"]
    assert any("link.json" in note for note in answers["notes"])


def test_the_answers(page: str) -> None:
    answers = until(lambda: (found := api(page, "answers"))["reading"] == 1 and found)
    assert answers["size"] == 2 and [each["rank"] for each in answers["ranks"]] == [0, 1]
    assert answers["operations"] == 2 * 6 * 20
    found = api(page, "search", "text=CONV")["tensors"]
    assert sorted(each["name"] for each in found) == ["conv1.bias", "conv1.weight", "conv2.bias", "conv2.weight"]
    timeline = api(page, "timeline", "from=0&to=1e6&width=1000")
    assert timeline["resolution"] == "slices" and set(timeline["rank"]) == {0, 1}
    assert set(api(page, "timeline", "from=0&to=1e6&width=1000&rank=1")["rank"]) == {1}


@pytest.mark.parametrize(
    ("query", "sentence"),
    [("from=0", "to='' must be a number."), ("from=nan&to=1", "from='nan' must be a number."),
     ("from=5&to=5", "from must be before to."), ("from=0&to=1e300", "to='1e300' must be a number."),
     ("from=0&to=1e16", "to=1e+16 must be a time in microseconds, below 10^15."),
     ("from=-1e15&to=0", "from=-1e+15 must be a time in microseconds, below 10^15."),
     ("from=0&to=1&width=x", "width='x' must be a number."), ("from=0&to=1&rank=r", "rank='r' must be a number."),
     ("from=0&to=1&rank=1e17", "rank=100000000000000000 must be the number of a rank."),
     ("from=0&to=1&rank=-1", "rank=-1 must be the number of a rank."), ("from=%ff&to=1", "Invalid unicode in from: b'\\xff'")],
)  # fmt: skip
def test_a_question_that_is_wrong(page: str, query: str, sentence: str) -> None:
    base, token = parts(page)
    status, text, _ = get(f"{base}api/timeline?token={token}&{query}")
    assert (status, text) == (400, sentence + "\n")


def test_other_methods(page: str) -> None:
    base, token = parts(page)
    for path in ("", "api/answers", "api/merged", "page/main.js"):
        address = f"{base}{path}?token={token}"
        status, text, headers = get(address, "HEAD")
        assert (status, text) == (200, "") and headers["Content-Type"]
        status, text, headers = get(address, "OPTIONS")
        assert (status, text, headers["Allow"]) == (204, "", "GET, HEAD, OPTIONS")
        assert "Access-Control-Allow-Origin" not in headers
        status, text, _ = get(address, "POST")
        assert (status, text) == (405, "Only GET, HEAD and OPTIONS are answered.\n")
    assert get(f"{base}api/answers", "HEAD")[0] == 403
    assert get(f"{base}api/answers", "POST")[0] == 403


def test_other_names_of_this_host(page: str, folder: Path) -> None:
    for name in ("127.0.0.1", "localhost:1", "[::1]:8", socket.gethostname(), "192.0.2.7"):
        assert get(page, Host=name)[0] == 200, name
    for name in ("rebound.example", "127.0.0.1.rebound.example", "", "[", "]", "[::1", "[x]:8"):
        status, text, _ = get(page, Host=name)
        assert status == 403 and "--proxy" in text, name
    with serving(folder, "--proxy", HVD_TIMELINE_PROXY="/user/me/proxy/{port}/") as shown:
        assert shown.startswith("/user/me/proxy/")
        port, token = shown.split("/")[4], parts(shown)[1]
        assert get(f"http://127.0.0.1:{port}/?token={token}", Host="hub.example")[0] == 200


def test_the_merged_file(page: str) -> None:
    base, token = parts(page)
    with urllib.request.urlopen(f"{base}api/merged?token={token}", timeout=LIMIT) as response:
        assert response.headers["Content-Disposition"] == 'attachment; filename="hvd-timeline.json"'
        events = json.loads(response.read())
    assert sum(event["ph"] == "B" for event in events) == 3 * 2 * 6 * 20


def test_a_download_that_is_given_up(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "job.json", ranks=8)
    for _ in range(8):
        writer.step(50)
    with serving(tmp_path) as page:  # which looks that nothing is printed
        base, token = parts(page)
        for _ in range(3):
            with urllib.request.urlopen(f"{base}api/merged?token={token}", timeout=LIMIT) as response:
                assert response.read(10)
        assert api(page, "answers")["size"] == 8


def test_a_download_that_fails_is_not_taken_for_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Writer(tmp_path / "job.json").step()

    def fails(out: IO[bytes]) -> None:
        out.write(b"[" * 300_000)
        raise OSError("the disk is gone")

    with serving_here(tmp_path) as (watched, where):
        monkeypatch.setattr(watched, "merge", fails)
        with pytest.raises(http.client.IncompleteRead):
            get(where.replace("/?", "/api/merged?"))


def test_an_error_is_told_without_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Writer(tmp_path / "job.json").step()

    def fails() -> None:
        raise RuntimeError("out of answers")

    with serving_here(tmp_path) as (watched, where):
        monkeypatch.setattr(watched, "answers", fails)
        status, text, _ = get(where.replace("/?", "/api/answers?"))
    assert (status, text) == (500, "The server has failed to answer.\n")
    assert "GET /api/answers has failed" in caplog.text and "RuntimeError: out of answers" in caplog.text
    assert parts(where)[1] not in caplog.text


class Fails:
    """An index that cannot read for a while."""

    def __init__(self, index: Any) -> None:
        self.index, self.over = index, False

    def read(self, most: int) -> int:
        if not self.over:
            raise MemoryError
        return int(self.index.read(most))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.index, name)


def test_a_file_that_cannot_be_read_is_told_and_does_not_end_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FOLDER_PERIOD", 0.05)
    monkeypatch.setattr(reading, "PERIOD", 0.01)
    writer = Writer(tmp_path / "job.json")
    writer.step(2)
    made: list[Fails] = []
    opening, finding = reading.open_index, reading.find

    def opened(found: Found) -> Any:
        made.append(Fails(opening(found)))
        return made[0]

    def fails(path: Path) -> Found:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr(reading, "open_index", opened)
    watched = Watched(tmp_path)
    try:
        until(lambda: any("cannot be read: MemoryError()." in note for note in watched.answers()["notes"]))
        monkeypatch.setattr(reading, "find", fails)
        told = f"{tmp_path} cannot be accessed: RecursionError('maximum recursion depth exceeded')."
        until(lambda: told in watched.answers()["notes"])
        made[0].over = True
        writer.step()
        until(lambda: watched.answers()["operations"] == 3 * 12)
        monkeypatch.setattr(reading, "find", finding)
        until(lambda: watched.answers()["notes"] == [])
    finally:
        watched.close()


def test_a_page_that_grows(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "job.json", ranks=1, tensors=HOSTILE)
    with serving(tmp_path) as page:
        assert until(lambda: api(page, "answers")["ranks"]) and api(page, "answers")["operations"] == 0
        writer.step()
        until(lambda: api(page, "answers")["operations"] == len(HOSTILE), 2)
        assert {each["name"] for each in api(page, "search", "text=")["tensors"]} == set(HOSTILE)
        # The file of another host comes later.
        Writer(tmp_path / "other.json", ranks=3).step()
        until(lambda: len(api(page, "answers")["files"]) == 2)
        # A new job takes the place of both.
        (tmp_path / "other.json").unlink()
        Writer(tmp_path / "job.json", ranks=1, job="11c0ffee").step(3)
        until(lambda: api(page, "answers")["operations"] == 3 * 6)


def test_a_file_that_goes_away(tmp_path: Path) -> None:
    Writer(tmp_path / "job.json").step(2)
    with serving(tmp_path / "job.json") as page:
        until(lambda: api(page, "answers")["operations"] == 24)
        (tmp_path / "job.json").unlink()
        until(lambda: any("job.json" in note for note in api(page, "answers")["notes"]))
        assert api(page, "answers")["operations"] == 24
        assert api(page, "timeline", "from=0&to=1e6")["tensor"]  # what is open can still be read


def test_a_rank_of_which_there_is_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "job.json", size=4)
    writer.step()
    watched = Watched(writer.path, note="Other hosts have their own.")
    try:
        answers = until(lambda: (found := watched.answers())["operations"] == 12 and found)
        assert answers["missing"] == [2, 3] and "Other hosts have their own." in answers["notes"]
    finally:
        watched.close()


def test_a_port_in_use(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "hvd.timeline.main", str(folder), "--port", port]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LIMIT)
    sentence = f"hvd-timeline: port {port} on 127.0.0.1 cannot be used: another program uses it; --port 0 takes any free one\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", sentence)


def test_a_browser_gets_the_token_by_a_file(folder: Path, tmp_path: Path) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f"#!/bin/sh\nprintf %s \"$1\" > '{seen}.part' && mv '{seen}.part' '{seen}'\n")
    browser.chmod(0o755)
    with serving(folder, "--open", BROWSER=str(browser)) as page:
        until(seen.exists)
        word = seen.read_text()
        assert word.startswith("file:///") and parts(page)[1] not in word
        file = Path(word.removeprefix("file://"))
        assert f'url={page}"' in file.read_text()
        assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)
    assert not file.parent.exists()


def test_the_token_is_on_no_command_line(page: str) -> None:
    token = parts(page)[1].encode()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                assert token not in Path("/proc", name, "cmdline").read_bytes()
            except OSError:
                continue
