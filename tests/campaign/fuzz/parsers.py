"""Parsers in Python under atheris: `parsers.py NAME`, with libFuzzer's options after it. From the sources, without the
extension.

A finding is, in all of them: an exception other than the one that is promised, one without a sentence, an input that
takes longer than -timeout, more memory than -rss_limit_mb, and a `require` that does not hold.
"""

import collections
import contextlib
import io
import json
import os
import pickle
import sys
import types
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bindings" / "python" / "src"))
import numpy  # noqa: E402  not followed: it is large, and not ours

if "config_file" in sys.argv:
    with atheris.instrument_imports(include=["yaml"]):
        import yaml  # noqa: F401
extension = types.ModuleType("hvd._core")
extension.dtypes = extension.operations = collections.defaultdict(int)
sys.modules["hvd._core"] = extension
with atheris.instrument_imports(include=["hvd"]):
    from hvd.core import objects  # noqa: E402
    from hvd.exceptions import HorovodInternalError  # noqa: E402
    from hvd.launcher import console, hosts, options, settings, streams  # noqa: E402
    from hvd.launcher.supervisor import rank as guard  # noqa: E402
    from hvd.remote import results as remote  # noqa: E402
    from hvd.remote.errors import RankError, RankFailed  # noqa: E402

PARSERS = {}


def parser(function):
    PARSERS[function.__name__] = function
    return function


def require(holds, what):
    if not holds:
        raise AssertionError(what)


@contextlib.contextmanager
def refuses(begins="", kind=ValueError):
    """What is in the block may refuse its input, in a sentence that begins like this."""
    try:
        yield
    except kind as error:
        require(type(error) is kind, f"{type(error).__name__} for {kind.__name__}")
        require(str(error).startswith(begins) and len(str(error)) > 10, f"a bad sentence: {error}")


class InMemory:
    """A file by a path that works in this process alone."""

    def __init__(self):
        self.number = os.memfd_create("hvd-fuzz")
        self.path = f"/proc/self/fd/{self.number}"

    def write(self, data):
        os.ftruncate(self.number, 0)
        os.pwrite(self.number, data, 0)
        return self.path


FILE = InMemory()


@parser
def host_list(data):
    """-H h1:2,h2. Besides: hosts that are others when they are written and read again."""
    text = data.decode("utf-8", "replace")
    with refuses("-H: "):
        check_hosts(hosts.parse_hosts(text))


@parser
def hostfile(data):
    """Hostfiles, and what discovery scripts print. Besides: as host_list."""
    path = FILE.write(data)
    with refuses():
        check_hosts(hosts.parse_hostfile(path))
    with refuses("script"):
        printed = hosts._parse_lines(data.decode("utf-8", "replace").splitlines(), "script", "3")
        if printed:  # a script may print no host: then none is there yet
            check_hosts(printed)


def check_hosts(found):
    require(found and len(dict(found)) == len(found), "no host, or one twice")
    require(all(name and slots >= 1 for name, slots in found), "a host without slots")
    require(hosts.parse_hosts(",".join(f"{name}:{slots}" for name, slots in found)) == found, "other hosts")
    available = sum(slots for _, slots in found)
    np = min(available, 7)
    require(sum(count for _, count in hosts.allot(found, np)) == np, "other ranks")


@parser
def config_file(data):
    """The YAML file of hvdrun. Besides: variables that are no texts without a zero."""
    if data.count(b"[") + data.count(b"{") > 50:
        return  # deep nesting takes PyYAML seconds
    path = FILE.write(data)
    with refuses(f"--config-file {path}"):
        chosen = settings.read_file(path)
        for name, value in settings.variables(chosen).items():
            require(isinstance(value, str) and name.isidentifier(), f"a bad variable {name}={value!r}")
        require(all(settings.warnings(chosen)), "an empty warning")


@parser
def command_line(data):
    """The words of hvdrun's command line, with zeros between them."""
    words = data.decode("utf-8", "surrogateescape").split("\0")[:12]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            chosen, warnings = options.parse([word for word in words if "config" not in word])
    except SystemExit as error:
        require(error.code == 0 or (error.code == 2 and said.getvalue()), "left without a word")
        return
    require(chosen.version or chosen.check_build or (chosen.np >= 1 and (chosen.command or chosen.show_placement)), "nothing to start")
    require(all(warnings), "an empty warning")


@parser
def rank_output(data):
    """What ranks write, in pieces as the first byte cuts it. Besides: a character that is lost or comes twice."""
    step = 1 + (data[0] if data else 0)
    text = data[1:]
    splitter = streams.Splitter()
    printed = io.StringIO()
    printer = console.LinePrinter(printed, printed, prefix=False)
    pieces = []
    for at in range(0, len(text), step):
        pieces += splitter.feed(text[at : at + step])
    pieces += splitter.feed(b"", True)
    for piece in pieces:
        printer(0, "stdout", piece)
    printer.finish()
    require("".join(pieces) == text.decode("utf-8", "replace").replace("\r\n", "\n"), "other text")
    require(all(piece and "\n" not in piece[:-1] for piece in pieces), "a piece with several lines")


@parser
def guard_lines(data):
    """Marked lines of a rank's guard among what the rank writes: those with the job's token, and no others.

    An input is pieces with zeros between them; one that begins with # is such a line. Besides: a byte of the rank's that
    is lost, and a line that is heeded and was not the guard's.
    """
    token = "0123456789abcdef"
    mark = f"{guard.MARK}{token} ".encode()
    written, sent, wanted = b"", [], b""
    for piece in data.split(b"\0"):
        if piece[:1] == b"#":
            words = ["result", piece[1:].decode("latin-1"), 5]
            sent.append(words)
            written += mark + json.dumps(words).encode() + b"\n"
        elif mark not in piece:
            written += piece + b"\n"
            wanted += piece + b"\n"
    handled = []
    lines = guard.GuardLines(token, handled.append)
    step = 1 + len(data) % 50
    passed = b"".join(lines(written[at : at + step]) for at in range(0, len(written), step)) + lines(b"")
    require(passed == wanted, "other output")
    require(handled == sent, "other lines of the guard")


class Framing(pickle._Unpickler):
    """Reads what has no names in it: this is about frames, and what a peer may name is not to be run here.

    In Python, because the one in C takes memory for numbers of objects that there are not; so do byte arrays in both.
    """

    dispatch = {code: load for code, load in pickle._Unpickler.dispatch.items() if code != pickle.BYTEARRAY8[0]}

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name}")

    def load(self):
        try:
            return super().load()
        except Exception as error:
            raise pickle.UnpicklingError("no pickle") from error


@contextlib.contextmanager
def frames_only():
    plain = types.SimpleNamespace(
        load=lambda file: Framing(file).load(), loads=lambda data: Framing(io.BytesIO(data)).load(), dumps=pickle.dumps
    )
    before = [(module, module.pickle) for module in (remote, objects)]
    for module, _ in before:
        module.pickle = plain
    try:
        yield
    finally:
        for module, real in before:
            module.pickle = real


@parser
def results(data):
    """What ranks leave in their files, of which the last may be cut. Besides: a result that nobody has left."""
    parts = data.split(b"|", 1)
    with frames_only():
        files = [io.BytesIO(part) for part in parts]
        with refuses("rank ", RankError):
            require(len(remote.results_of(files, None, True)) == len(parts), "other ranks")
        failed = RankFailed(0, 1, (), len(parts))
        with contextlib.suppress(RankFailed):
            remote.results_of([io.BytesIO(part) for part in parts], failed)
            require(False, "a rank that has failed is forgotten")


@parser
def results_of_hosts(data):
    """The same of ranks on other hosts, as they have come."""
    with frames_only():
        remote.from_host(data, 7)


@parser
def objects_of_ranks(data):
    """Pickled objects from other ranks: lengths, and bytes of all of them. Besides: other objects than were sent."""
    lengths = numpy.frombuffer(data[:24].ljust(24, b"\0"), dtype=numpy.int64)
    body = numpy.frombuffer(data[24:], dtype=numpy.uint8)
    arrays = []

    def next_array(*_):
        return arrays.pop(0)

    def broadcast(array, *_):
        got = next_array()
        if len(array) != len(got):  # as ranks find out that compare what they have submitted
            raise HorovodInternalError("hvd: ranks do not agree on the shape of what is broadcast")
        return got

    objects._broadcast, objects._allgather = broadcast, next_array
    ranks = types.SimpleNamespace(ranks=[0, 1, 2])
    objects.state.rank = lambda: 1
    with frames_only():
        for call in (lambda: objects.broadcast_object(None, 0, "x"), lambda: objects.allgather_object(None, "x", ranks)):
            arrays[:] = [lengths[:1] if call.__code__.co_names[1] == "broadcast_object" else lengths, body]
            with contextlib.suppress(pickle.UnpicklingError), refuses("hvd: ", HorovodInternalError):
                call()


def main():
    name = sys.argv.pop(1)
    harness = PARSERS[name]
    atheris.Setup([word for word in sys.argv if not word.startswith("-detect_leaks")], harness)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
