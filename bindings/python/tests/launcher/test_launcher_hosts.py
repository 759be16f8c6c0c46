"""hvd/launcher/hosts.py"""

from __future__ import annotations

import socket

import pytest

from hvd.launcher import hosts


def test_hosts():
    assert hosts.parse_hosts("h1:2,h2") == [("h1", 2), ("h2", 1)]
    assert hosts.parse_hosts("a.b-c_1:3, a.b-c_1:1") == [("a.b-c_1", 4)]
    assert hosts.parse_hosts("h1:2,") == hosts.parse_hosts("h1:2, ") == [("h1", 2)]


@pytest.mark.parametrize("text", ["", ",", "h1,,h2", "h1,,", "h1 h2", "-oProxyCommand=x:1", "h1:0", "h1:-1", "h1:x", "h1:", "a/b"])
def test_what_is_no_host(text):
    with pytest.raises(ValueError, match="^-H: '.*' (is not a host|has '.*' slots); allowed: "):
        hosts.parse_hosts(text)


def test_hostfiles(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# all of them\nh1 slots=2\n\nh2:3 # MPICH\nh3 slots = 4 max-slots=8\nh4\nh1 slots=1\n")
    assert hosts.parse_hostfile(path) == [("h1", 3), ("h2", 3), ("h3", 4), ("h4", 1)]
    path.write_bytes(b"\xef\xbb\xbfh1 slots=2\r\nh2\r\n")  # as some editors save it
    assert hosts.parse_hostfile(path) == [("h1", 2), ("h2", 1)]


def test_bad_hostfiles(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("h1 slots=2\nh2 two\n")
    with pytest.raises(ValueError, match=f"^{path}, line 2: 'h2 two' is not a host"):
        hosts.parse_hostfile(path)
    path.write_text("h1 slots=none\n")
    with pytest.raises(ValueError, match=f"^{path}, line 1: 'h1 slots=none' has 'none' slots"):
        hosts.parse_hostfile(path)
    path.write_text("# nobody\n")
    with pytest.raises(ValueError, match="names no host"):
        hosts.parse_hostfile(path)
    path.write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match="is not a text in UTF-8"):
        hosts.parse_hostfile(path)
    with pytest.raises(ValueError, match="cannot be read: No such file or directory"):
        hosts.parse_hostfile(tmp_path / "nowhere")


def test_discovery(tmp_path):
    script = tmp_path / "my script"
    script.write_text("#!/bin/sh\necho h1:2\necho h2\n")
    script.chmod(0o755)
    assert hosts.discovered_hosts(str(script)) == [("h1", 2), ("h2", 1)]
    assert hosts.discovered_hosts(str(script), 4) == [("h1", 2), ("h2", 4)]
    assert hosts.discovered_hosts(f"'{script}' | head -n 1") == [("h1", 2)]
    script.write_text("#!/bin/sh\nprintf '\\357\\273\\277h1:2\\n'\n")  # a byte order mark, as of a saved file
    assert hosts.discovered_hosts(str(script)) == [("h1", 2)]
    script.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(ValueError, match="ended with exit code 3"):
        hosts.discovered_hosts(str(script))


def test_allotment():
    assert hosts.allot([("h1", 2), ("h2", 2)], 3) == [("h1", 2), ("h2", 1)]
    assert hosts.allot([("h1", 2), ("h2", 2)], 2) == [("h1", 2)]
    with pytest.raises(ValueError, match=r"^5 ranks were asked for, but there are 4 slots \(h1:2, h2:2\); .*-np 4"):
        hosts.allot([("h1", 2), ("h2", 2)], 5)


def test_what_is_this_host():
    assert hosts.is_local("localhost") and hosts.is_local("127.0.0.1") and hosts.is_local(socket.gethostname())
    assert not hosts.is_local("192.0.2.1")  # for documentation only (RFC 5737)
    assert not hosts.is_local("no-such-host.invalid")


@pytest.mark.parametrize(("number", "own"), [(socket.EAI_AGAIN, True), (socket.EAI_NONAME, False)])
def test_what_is_this_host_when_names_cannot_be_resolved(monkeypatch, number, own):
    """A name server that does not answer once makes this host no other one."""

    def fail(*_, **__):
        raise socket.gaierror(number, "failed")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr(socket, "gethostname", lambda: "node1")
    assert hosts.is_local("node1") and hosts.is_local("node1.cluster") == own
    assert not hosts.is_local("node12") and not hosts.is_local("node2.cluster")
