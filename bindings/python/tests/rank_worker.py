"""The process from which ranks of tests are forked: it imports frameworks once, which takes longer than a test.

Its argument is the descriptor of a socket, through which requests come, lines of JSON: to import a test module, to fork
ranks, whose sockets it sends back, or to wait for a rank. A rank gets lines that name a file, a function in it and
arguments, and answers each with what the function returned, or with its traceback.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import importlib.util
import json
import os
import signal
import socket
import sys
import traceback
from types import ModuleType
from typing import Any, Callable

_modules: dict[str, ModuleType] = {}
_TRACEBACK = 20_000  # characters, of which most come in one message


def load(path: str) -> ModuleType:
    """The test module, imported once under a name of its own."""
    if path not in _modules:
        name = "ranks_" + os.path.basename(path)[:-3]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        _modules[path] = module
    return _modules[path]


def _serve(channel: socket.socket) -> None:
    report = channel.makefile("w")
    for line in channel.makefile("r"):
        path, function, arguments = json.loads(line)
        answer, failure = None, None
        try:
            answer = getattr(load(path), function)(**arguments)
        except SystemExit:
            raise  # it ends as a program does
        except BaseException:
            failure = traceback.format_exc()
        report.write(json.dumps([answer, failure]) + "\n")
        report.flush()


def _fork_ranks(
    request: dict[str, Any], control: socket.socket, begin: Callable[[dict[str, Any]], None]
) -> tuple[list[int], list[socket.socket]]:
    processes: list[int] = []
    ends: list[socket.socket] = []
    for environment in request["environments"]:
        end, channel = socket.socketpair()
        process = os.fork()
        if process != 0:
            channel.close()
            processes.append(process)
            ends.append(end)
            continue
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # when the process that forks it ends
        for other in (*ends, end, control):
            other.close()
        faulthandler.register(signal.SIGUSR1)
        os.environ.update(environment, TMPDIR=os.environ["TMPDIR"])
        try:
            begin(request)
            _serve(channel)
        except SystemExit:
            raise
        except BaseException:
            traceback.print_exc()
            os._exit(3)
        if not request["whole_exit"]:
            atexit._run_exitfuncs()
            os._exit(0)
        sys.exit(0)
    return processes, ends


def answer_requests(begin: Callable[[dict[str, Any]], None]) -> None:
    """Until the socket is closed. A rank begins with `begin`."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for line in control.makefile("r"):
        request = json.loads(line)
        if "wait" in request:
            control.sendall(str(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])).encode())
        elif "load" in request:
            failure = None
            try:
                load(request["load"])
            except BaseException:
                failure = traceback.format_exc()[-_TRACEBACK:]
            control.sendall(json.dumps(failure).encode())
        else:
            gc.collect()
            gc.freeze()  # what ranks collect is their own
            processes, ends = _fork_ranks(request, control, begin)
            socket.send_fds(control, [json.dumps(processes).encode()], [end.fileno() for end in ends])
            for end in ends:
                end.close()


if __name__ == "__main__":
    import hvd

    answer_requests(lambda request: hvd.init() if request.get("joined", True) else None)
