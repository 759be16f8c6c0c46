"""The PMI server: its answers, and real processes of MPICH that find each other by it."""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import subprocess
import sys

import pytest

from hvd.remote import pmi


def test_answers():
    server = pmi.Server([0, 0])
    assert server.answer(0, "cmd=init pmi_version=1 pmi_subversion=1\n") == [
        (0, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n")
    ]
    assert server.answer(1, "cmd=init pmi_version=2 pmi_subversion=0") == [
        (1, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1\n")
    ]
    assert server.answer(0, "cmd=get_maxes") == [(0, "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n")]
    assert server.answer(0, "cmd=get_universe_size") == [(0, "cmd=universe_size size=2\n")]
    assert server.answer(1, "cmd=get_appnum") == [(1, "cmd=appnum appnum=0\n")]
    assert server.answer(1, "cmd=get_my_kvsname") == [(1, "cmd=my_kvsname kvsname=hvd\n")]
    assert server.answer(0, "cmd=put kvsname=hvd key=a value=b c=d") == [(0, "cmd=put_result rc=0 msg=success\n")]
    assert server.answer(1, "cmd=put kvsname=hvd key=a value=e") == [(1, "cmd=put_result rc=-1 msg=duplicate_key_a\n")]
    assert server.answer(1, "cmd=barrier_in") == []
    assert server.answer(0, "cmd=barrier_in") == [(0, "cmd=barrier_out rc=0\n"), (1, "cmd=barrier_out rc=0\n")]
    assert server.answer(0, "cmd=barrier_in") == []
    assert server.answer(1, "cmd=get kvsname=hvd key=a") == [(1, "cmd=get_result rc=0 msg=success value=b c=d\n")]
    assert server.answer(1, "cmd=get kvsname=hvd key=z") == [
        (1, "cmd=get_result rc=-1 msg=key_z_not_found value=unknown\n")
    ]
    assert server.answer(1, "cmd=lookup_name service=x") == [
        (1, "cmd=lookup_name_result rc=-1 msg=not_supported_by_hvd\n")
    ]
    assert server.aborted is None and server.answer(1, "cmd=abort exitcode=7") == [] and server.aborted == (1, 7)
    assert server.answer(0, "cmd=abort exitcode=8") == [] and server.aborted == (1, 7)
    assert server.answer(0, "cmd=finalize") == [(0, "cmd=finalize_ack rc=0\n")]
    assert server.initialised == {0, 1}


def test_mapping():
    assert pmi.process_mapping([0, 0, 1, 1]) == "(vector,(0,1,2),(1,1,2))"
    assert pmi.process_mapping([0, 1, 0, 1]) == "(vector,(0,1,1),(1,1,1),(0,1,1),(1,1,1))"
    assert pmi.process_mapping([0]) == "(vector,(0,1,1))"


def run(command, hosts):
    """The ranks' outputs; each asks through a socket of its own."""
    server, size = pmi.Server(hosts), len(hosts)
    watched = selectors.DefaultSelector()
    sockets, ranks = [], []
    for rank in range(size):
        mine, theirs = socket.socketpair()
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "HOROVOD_", "HVD_"))}
        own = {"PMI_FD": str(theirs.fileno()), "PMI_RANK": str(rank), "PMI_SIZE": str(size)}
        ranks.append(
            subprocess.Popen(
                command, env={**clean, **own}, pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE, text=True
            )
        )
        theirs.close()
        sockets.append(mine)
        watched.register(mine, selectors.EVENT_READ, rank)
    begun = [b""] * size
    while watched.get_map():
        for key, _ in watched.select(100):
            data = key.fileobj.recv(4096)
            if not data:
                watched.unregister(key.fileobj)
                continue
            *lines, begun[key.data] = (begun[key.data] + data).split(b"\n")
            for line in lines:
                for rank, answer in server.answer(key.data, line.decode()):
                    sockets[rank].sendall(answer.encode())
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    for each in sockets:
        each.close()
    assert [rank.returncode for rank in ranks] == [0] * size
    assert server.initialised == set(range(size))
    return outputs


PROGRAM = r"""
#include <mpi.h>
#include <cstdio>
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, size, mates;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm host;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
  MPI_Comm_size(host, &mates);
  int total = rank + 1;
  MPI_Allreduce(MPI_IN_PLACE, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  std::printf("%d of %d, %d here, total %d\n", rank, size, mates, total);
  MPI_Finalize();
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    compiler = shutil.which("mpicxx.mpich")
    if not compiler:
        pytest.skip("mpicxx.mpich is missing (Debian: libmpich-dev)")
    folder = tmp_path_factory.mktemp("pmi")
    (folder / "main.cpp").write_text(PROGRAM)
    subprocess.run([compiler, folder / "main.cpp", "-o", folder / "main"], check=True, timeout=120)
    return folder / "main"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_mpich(program, size):
    total = sum(range(1, size + 1))
    expected = [f"{rank} of {size}, {size} here, total {total}\n" for rank in range(size)]
    assert run([program], [0] * size) == expected


def test_hosts_of_mpich(program):
    assert run([program], [0, 1, 0]) == [
        "0 of 3, 2 here, total 6\n", "1 of 3, 1 here, total 6\n", "2 of 3, 2 here, total 6\n"
    ]  # fmt: skip


def test_hvd():
    over = pytest.importorskip("hvd._core_mpi", reason="hvd was built without an MPI")
    if "MPICH" not in over.library():
        pytest.skip("hvd was not built with MPICH")
    script = (
        "import os; os.environ['HVD_TRANSPORT'] = 'mpi'; import numpy as np, hvd; hvd.init();"
        "print(hvd.rank(), hvd.size(), hvd.mpi_enabled(), hvd.allreduce(np.arange(3.0), op=hvd.Sum).tolist())"
    )
    assert run([sys.executable, "-c", script], [0, 0]) == [f"{rank} 2 True [0.0, 2.0, 4.0]\n" for rank in range(2)]
