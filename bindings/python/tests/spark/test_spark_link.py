"""The connections of a job: who knows its secret talks, and a stranger gets nothing and disturbs nothing."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from typing import Any

import pytest

from hvd.spark import link as links
from hvd.spark.link import Link, Listener, dial

SECRET = bytes(range(32))


class Server:
    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.links: list[Link] = []
        self.arrived = threading.Condition()
        self.listener = Listener(["127.0.0.1"], SECRET, self.welcome)

    def welcome(self, link: Link) -> None:
        self.links.append(link)
        while (frame := link.receive()) is not None:
            with self.arrived:
                self.frames.append(frame)
                self.arrived.notify_all()

    def wait(self, count: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.frames) >= count, 10)


@pytest.fixture
def server() -> Any:
    made = Server()
    yield made
    made.listener.close()


def test_frames_arrive_whole_from_any_thread(server: Server) -> None:
    link = dial(server.listener.address, SECRET, 5)
    threads = [
        threading.Thread(target=lambda i=i: [link.send("n", i, payload=bytes([i]) * 100_000) for _ in range(5)])  # type: ignore[misc]
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.wait(20)
    assert all(payload == bytes([words[1]]) * 100_000 for words, payload in server.frames)
    assert server.links[0].send("back", payload=b"x") and link.receive() == (["back"], b"x")
    link.close()


def test_strangers_get_nothing_and_disturb_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise, silence, half a proof, and more of them than may prove themselves at a time."""
    monkeypatch.setattr(links, "PROOF_SECONDS", 3.0)
    link = dial(server.listener.address, SECRET, 5)
    strangers = [socket.create_connection(server.listener.address) for _ in range(links.STRANGERS + 20)]
    for number, stranger in enumerate(strangers):
        try:
            stranger.sendall(os.urandom(200) if number % 3 == 0 else b"GET / HTTP/1.0\r\n\r\n" if number % 3 == 1 else b"")
        except OSError:
            pass
    link.send("still here")
    server.wait(1)
    amid = dial(server.listener.address, SECRET, 5)  # while more than may prove themselves do nothing
    amid.send("amid")
    server.wait(2)
    for stranger in strangers:
        stranger.settimeout(10)
        heard = b""
        try:
            while data := stranger.recv(4096):
                heard += data
        except OSError:
            pass
        assert len(heard) <= links.NONCE  # a nonce, or less
        stranger.close()
    late = dial(server.listener.address, SECRET, 5)
    late.send("later")
    server.wait(3)
    assert [words for words, _ in server.frames] == [["still here"], ["amid"], ["later"]] and len(server.links) == 3


def test_a_wrong_secret(server: Server) -> None:
    with pytest.raises(OSError, match=r"127.0.0.1:\d+ has not proven that it belongs to this job"):
        dial(server.listener.address, b"another" * 4, 5)
    assert server.links == []


def test_who_only_listens_learns_no_proof_and_cannot_reflect_one() -> None:
    """A false listener that sends back what it gets."""
    false = socket.create_server(("127.0.0.1", 0))

    def reflect() -> None:
        connection, _ = false.accept()
        try:
            while data := connection.recv(4096):
                connection.sendall(data)
        except OSError:
            pass

    threading.Thread(target=reflect, daemon=True).start()
    with pytest.raises(OSError, match="has not proven"):
        dial(false.getsockname()[:2], SECRET, 5)
    false.close()


def test_nobody_listens() -> None:
    closed = socket.create_server(("127.0.0.1", 0))
    address = closed.getsockname()[:2]
    closed.close()
    begun = time.monotonic()
    with pytest.raises(OSError, match=rf"127.0.0.1:{address[1]} cannot be reached: "):
        dial(address, SECRET, 0.3)
    assert time.monotonic() - begun < 5


def test_a_stranger_who_sends_byte_by_byte_has_one_deadline(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PROOF_SECONDS", 0.5)
    stranger = socket.create_connection(server.listener.address)
    stranger.settimeout(0.05)
    until = time.monotonic() + 20
    sent = 0
    ended = False
    while not ended and sent < links.NONCE - 1 and time.monotonic() < until:
        try:
            stranger.sendall(b"x")
            sent += 1
            ended = stranger.recv(4096) == b""
        except TimeoutError:
            pass
        except OSError:
            ended = True
    stranger.settimeout(10)
    while not ended:
        ended = stranger.recv(4096) == b""
    assert sent < links.NONCE - 1


def test_close_ends_strangers_too(server: Server) -> None:
    stranger = socket.create_connection(server.listener.address)
    stranger.settimeout(links.PROOF_SECONDS / 2)
    assert len(stranger.recv(links.NONCE)) == links.NONCE
    server.listener.close()
    assert stranger.recv(1) == b""


def test_a_passing_error_does_not_close_the_port(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the process has no descriptor left for a while."""
    accept = socket.socket.accept
    failures = [OSError(errno.EMFILE, "Too many open files")]

    def flaky(self: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return accept(self)

    dial(server.listener.address, SECRET, 5).close()  # the port waits in the real accept() before this
    monkeypatch.setattr(socket.socket, "accept", flaky)
    dial(server.listener.address, SECRET, 5).close()
    second = dial(server.listener.address, SECRET, 5)
    second.send("after")
    server.wait(1)
    assert not failures


def test_others_dial_the_first_address(server: Server) -> None:
    """As in a container, whose address for others is that of its host."""
    listener = Listener(["192.0.2.1", "127.0.0.1"], SECRET, server.welcome)
    host, port = listener.address
    assert host == "192.0.2.1"
    dial(("127.0.0.1", port), SECRET, 5).send("there")
    server.wait(1)
    listener.close()
