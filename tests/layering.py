#!/usr/bin/env python3
"""Holds the levels of include/hvd: no header includes what lies above it, nor a neighbour on its level.

Besides: the length of headers, what examples include, which rooms of bench/ know each other, that no test is left out of
the build, and that descriptors come from hvd/detail/descriptor.hpp and socket_descriptor.hpp alone.

usage: layering.py [ROOT]        check the tree at ROOT (default: the one that this file is in)
       layering.py --self-test   check that deliberate mistakes in a temporary tree are found

Prints each violation as `file:line: sentence` and exits with 1 if there is one.
"""

import posixpath
import re
import sys
import tempfile
from pathlib import Path

# From the bottom up: what lies on each level. NAME stands for NAME.hpp and the folder NAME/ with its parts, NAME/ for all in
# a folder, NAME/* for each header in it with its parts. The last word says whether what lies there may include each other.
LEVELS = (
    ("version error", "together"),
    ("detail/", "together"),
    ("dtype config topology shared_array line_costs policy buffer tensors op dynamic_op eigen pin cuda/", "together"),
    ("transport call selection shared_memory/", "together"),
    ("transport/* algorithm/", "apart"),
    ("collective/", "together"),
    ("allreduce reduce reduce_scatter allgather broadcast alltoall gather scatter scan barrier send_recv within", "apart"),
    ("fusion hierarchical timeline handle", "apart"),
    ("erased_transport", "apart"),
    ("any_transport", "apart"),
    ("engine launch queue", "apart"),
    ("hvd gpu torch compiled c/", "apart"),
)
# Folders of headers that users include; every other folder has parts of the header of its name, or what several share.
PUBLIC_FOLDERS = ("transport", "algorithm")

# A header named after a third party, with its parts, is the only one that includes it, and no other header includes that one.
THIRD_PARTY = {
    "eigen": ("Eigen/",),
    "torch": ("torch/", "ATen/", "c10/"),
    "transport/mpi": ("mpi.h",),
}
# Likewise, but only behind a macro, for programs that link the library; so other headers may include these headers.
LINKED = {"cuda": ("cuda.h",), "transport/nccl": ("nccl.h",)}

# What a header adds to others, as parts of theirs; it includes them, and they each other, and nobody else does.
ADDED = {"gpu.hpp": ("engine/nccl.hpp", "engine/nccl_device.hpp", "fusion/device.hpp", "hierarchical/device.hpp")}

# Includes parts of others, to compile them.
COMPILES = "compiled.hpp"

# Written by a tool, not by hand.
GENERATED = ("cuda/copy_ptx.hpp",)

# The rooms of bench/, and from which others each includes or imports; "" is what lies in bench/ itself.
ROOMS = {
    "": (),
    "cases": ("",),
    "rank": ("", "cases"),
    "backends": ("", "cases", "rank"),
    "peers": ("", "rank"),
    "report": ("",),
    "coordinator": ("", "cases", "rank", "backends", "peers", "report"),
    "gpu": ("", "cases", "backends"),
    "support": (),
    "comparison": ("report", "support"),
    "simulated": ("", "backends", "support"),
    "training": ("support",),
    "tensor_parallelism": ("support", "training"),
    "timelines": ("support", "training"),
}

# Calls that give the lowest free number to what they open, which may be that of a standard stream. Directories that are
# read and closed at once (opendir) do no harm.
DESCRIPTORS = re.compile(
    r"(?<!\w)::open\(|\b(openat|creat|f(re)?open|tmpfile|dup[23]?|memfd_create|shm_open|mko?s?temps?|socket(pair)?|accept4?"
    r"|recvmsg|epoll_create1?|eventfd|pipe2?|inotify_init1?|timerfd_create|signalfd|pidfd_open)\(|\bF_DUPFD|\b[io]?fstream\b"
)
DESCRIPTOR_HEADERS = ("detail/descriptor.hpp", "detail/socket_descriptor.hpp")

# Files that are not there, with which version.hpp ends a compilation that can only fail.
NOT_THERE = ("hvd_needs_cpp20", "hvd_needs_exceptions", "hvd_needs_64_bits", "hvd_needs_names")

STANDARD = set(
    """
    algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes climits
    clocale cmath codecvt compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint
    cstdio cstdlib cstring ctime cuchar cwchar cwctype deque exception execution filesystem format forward_list fstream
    functional future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory
    memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex scoped_allocator
    semaphore set shared_mutex source_location span sstream stack stdexcept stop_token streambuf string string_view
    strstream syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility
    valarray variant vector version
    """.split()
)
# POSIX, Linux and what the compiler itself brings for a CPU.
SYSTEM = set(
    """
    aio.h alloca.h assert.h byteswap.h ctype.h dirent.h dlfcn.h elf.h endian.h err.h errno.h execinfo.h fcntl.h float.h
    fnmatch.h getopt.h glob.h grp.h ifaddrs.h inttypes.h limits.h link.h locale.h malloc.h math.h memory.h mntent.h
    mqueue.h netdb.h poll.h pthread.h pwd.h sched.h semaphore.h setjmp.h signal.h spawn.h stdarg.h stdbool.h stddef.h
    stdint.h stdio.h stdlib.h string.h strings.h syscall.h syslog.h termios.h time.h ucontext.h unistd.h utime.h wchar.h
    wordexp.h cxxabi.h cpuid.h emmintrin.h immintrin.h x86intrin.h xmmintrin.h arm_neon.h arm_sve.h
    """.split()
)
SYSTEM_FOLDERS = ("sys/", "linux/", "asm/", "arpa/", "net/", "netinet/")

OTHER_FOLDERS = ("tests", "bench", "examples", "bindings", "tools")

WARN_LINES = 300
MOST_LINES = 400

DETAIL = re.compile(r"^namespace hvd::inline HVD_ABI::detail", re.MULTILINE)
PUBLIC = re.compile(r"^namespace hvd::inline HVD_ABI \{", re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b[ \t]*(.*?)[ \t]*(?://.*)?$")
IMPORT = re.compile(r"^[ \t]*(?:from|import) (\w+)")
SPELLING = re.compile(r"^(?:<([^>]+)>|\"([^\"]+)\")")


def includes(text):
    """Yields (line number, spelled name or None if it is not a plain name, whether it stands in quotes)."""
    text = COMMENT.sub(lambda comment: "\n" * comment.group().count("\n"), text)
    for number, line in enumerate(text.splitlines(), 1):
        if found := INCLUDE.match(line):
            spelled = SPELLING.match(found.group(1))
            yield number, spelled and (spelled.group(1) or spelled.group(2)), bool(spelled and spelled.group(2))


def is_system(name):
    return name in STANDARD or name in SYSTEM or name.startswith(SYSTEM_FOLDERS)


def is_public(header):
    """Whether users include it: what lies in include/hvd, transport/ or algorithm/ itself, not in a folder of parts."""
    folder = posixpath.dirname(header)
    return not folder or folder in PUBLIC_FOLDERS


def stem(header):
    """The public header that it is or is a part of, without its ending; its folder, where no header owns it."""
    parts = header.removesuffix(".hpp").split("/")
    return "/".join(parts[:2]) if parts[0] in PUBLIC_FOLDERS else parts[0] + ("/" if len(parts) > 1 else "")


def place(header, owned):
    """(level, room) of a header, or None. Headers of one room may include each other. `owned` are folders with a header."""
    whose = stem(header)
    if whose.endswith("/") and whose[:-1] in owned:
        whose = whose[:-1]
    folder = posixpath.dirname(whose + ".") + "/"
    for level, (entries, relation) in enumerate(LEVELS):
        for entry in entries.split():
            if entry == whose or entry == folder + "*" or (entry == folder and not whose.endswith("/")):
                return level, "" if relation == "together" else whose if entry.endswith("*") else entry
    return None


class Check:
    def __init__(self, root):
        self.root = Path(root)
        self.violations = []
        self.warnings = []

    def say(self, path, line, sentence):
        self.violations.append(f"{path.relative_to(self.root)}:{line}: {sentence}")

    def run(self):
        self.check_headers()
        self.check_descriptors()
        self.check_examples()
        self.check_bench()
        self.check_tests()
        return self

    def check_headers(self):
        base = self.root / "include" / "hvd"
        self.owned = {header.relative_to(base).as_posix().removesuffix(".hpp") for header in base.rglob("*.hpp")}
        graph = {}
        for path in sorted(base.rglob("*")):
            if not path.is_file():
                continue
            header = path.relative_to(base).as_posix()
            text = path.read_text()
            lines = text.count("\n")
            if header in GENERATED:
                pass
            elif lines > MOST_LINES:
                self.say(path, lines, f"the header has {lines} lines; {MOST_LINES} is the most.")
            elif lines > WARN_LINES:
                self.warnings.append(f"{path.relative_to(self.root)}:{lines}: warning: the header has {lines} lines.")
            if self.place(header) is None:
                self.say(path, 1, "the header has no level; give it one in LEVELS of tests/layering.py.")
            if is_public(header) and DETAIL.search(text) and not PUBLIC.search(text):
                self.say(path, 1, "the header opens only hvd::detail: it is a part and lies in a folder.")
            graph[header] = self.check_header(base, path, header, text)
        self.check_cycles(base, graph)

    def check_header(self, base, path, header, text):
        """Judges each include of one header; returns {included header: line}."""
        edges = {}
        for line, name, quoted in includes(text):
            if name is None:
                self.say(path, line, "an include that is not a plain name cannot be checked.")
                continue
            target = self.as_header(base, path, name, quoted)
            if target is None:
                self.check_foreign(path, line, header, name)
            elif not (base / target).is_file():
                self.say(path, line, f"<hvd/{target}> does not exist.")
            else:
                edges[target] = line
                self.check_edge(path, line, header, target)
        return edges

    @staticmethod
    def as_header(base, path, name, quoted):
        """The name below include/hvd of what is included, or None if it is not a header of hvd."""
        if quoted and (path.parent / name).is_file():
            relative = posixpath.normpath(posixpath.join(path.parent.relative_to(base).as_posix(), name))
            return None if relative.startswith("../") else relative
        return posixpath.normpath(name[len("hvd/") :]) if name.startswith("hvd/") else None

    def check_foreign(self, path, line, header, name):
        if is_system(name) or name in NOT_THERE:
            return
        if name.startswith((THIRD_PARTY | LINKED).get(stem(header).rstrip("/"), ())):
            return
        folder = next((part for part in name.split("/") if part in OTHER_FOLDERS), None)
        if folder is not None:
            self.say(path, line, f"a header must not include from {folder}/.")
        else:
            self.say(
                path, line, f"<{name}> is no standard or system header; a third party has a place only in {places()}."
            )

    def place(self, header):
        return place(header, self.owned)

    def check_edge(self, path, line, header, target):
        here, there = self.place(header), self.place(target)
        owner = posixpath.dirname(target)
        third_party = stem(target).rstrip("/")
        if third_party in THIRD_PARTY and stem(header).rstrip("/") != third_party:
            self.say(path, line, f"<hvd/{target}> needs a third party, so no other header includes it.")
        elif (
            owner in self.owned
            and not is_public(target)
            and not header.startswith((owner + ".", owner + "/"))
            and header != COMPILES
            and not any(target in parts and header in (adds, *parts) for adds, parts in ADDED.items())
        ):
            self.say(path, line, f"<hvd/{target}> is a part of {owner}.hpp, included there alone.")
        elif here is None or there is None or there[0] < here[0] or there == here:
            pass  # cycles are found below
        elif there[0] > here[0]:
            self.say(path, line, f"<hvd/{target}> is on level {there[0]}, above this header's level {here[0]}.")
        else:
            self.say(path, line, f"<hvd/{target}> is on the same level ({here[0]}); neither may include the other.")

    def check_cycles(self, base, graph):
        done = set()

        def visit(header, trail):
            done.add(header)
            for target, line in graph.get(header, {}).items():
                if target in trail:
                    ring = [*trail[trail.index(target) :], target]
                    self.say(base / header, line, f"includes form a cycle: {' -> '.join(ring)}.")
                elif target not in done:
                    visit(target, [*trail, target])

        for header in graph:
            if header not in done:
                visit(header, [header])

    def check_descriptors(self):
        for folder in ("include/hvd", "c", "bindings/python/src/extension"):
            for path in sorted((self.root / folder).rglob("*.[hc]pp")):
                if path.as_posix().endswith(tuple(f"hvd/{header}" for header in DESCRIPTOR_HEADERS)):
                    continue
                text = COMMENT.sub(lambda comment: "\n" * comment.group().count("\n"), path.read_text())
                for line, code in enumerate(text.splitlines(), 1):
                    if found := DESCRIPTORS.search(code.partition("//")[0]):
                        self.say(path, line, f"{found[0]} may return 0, 1 or 2; use <hvd/{DESCRIPTOR_HEADERS[0]}>.")

    def check_examples(self):
        base = self.root / "examples"
        for path in sorted(base.rglob("*")):
            if path.suffix not in (".hpp", ".h", ".cpp", ".cc") or not path.is_file():
                continue
            for line, name, quoted in includes(path.read_text()):
                if name is None:
                    self.say(path, line, "an include that is not a plain name cannot be checked.")
                elif quoted:
                    if not any((folder / name).resolve().is_relative_to(base.resolve()) for folder in (path.parent, base)):
                        self.say(path, line, f'"{name}" is not a file of the examples.')
                elif name.startswith("hvd/") and not is_public(name[len("hvd/") :]):
                    self.say(path, line, f"<{name}> is a part; an example uses what users use.")
                elif not (name.startswith(("hvd/", "Eigen/", "torch/")) or is_system(name)):
                    self.say(path, line, f"<{name}> is not hvd, Eigen, libtorch or the standard library.")

    def check_bench(self):
        base = self.root / "bench"
        graph = {}
        for path in sorted(base.rglob("*.[hc]pp")):
            own = path.relative_to(base)
            edges = graph[own.as_posix()] = {}
            for line, name, _ in includes(path.read_text()):
                if name and name.startswith("bench/"):
                    target = name.removeprefix("bench/")
                    edges[target] = line
                    self.check_room(path, line, own.parts[0] if len(own.parts) > 1 else "", posixpath.dirname(target))
        self.check_cycles(base, graph)
        for path in sorted(base.glob("*/*.py")):
            for line, text in enumerate(path.read_text().splitlines(), 1):
                found = IMPORT.match(text)
                if found and found[1] in ROOMS:
                    self.check_room(path, line, path.parent.name, found[1])

    def check_room(self, path, line, room, target):
        if room not in ROOMS:
            self.say(path, line, f"bench/{room}/ is no room; give it one in ROOMS of tests/layering.py.")
        elif target != room and target not in ROOMS[room]:
            allowed = ", ".join(f"bench/{name}".rstrip("/") for name in ROOMS[room]) or "none"
            self.say(path, line, f"bench/{room} knows nothing of bench/{target}; allowed: {allowed}.")

    def check_tests(self):
        base = self.root / "tests"
        listed = base / "meson.build"
        if not listed.exists():
            return
        for path in sorted(base.rglob("*.cpp")):
            name = path.relative_to(base).with_suffix("").as_posix()
            # By its name in the list of all, or as a file of a folder that has a list of its own.
            own = path.parent / "meson.build"
            if "TEST_CASE" not in path.read_text() or f"'{name}'" in listed.read_text():
                continue
            names = (f"'{path.name}'", f"'{path.stem}'")
            if not (own != listed and own.exists() and any(each in own.read_text() for each in names)):
                self.say(path, 1, "the test is never run; add it to tests/meson.build.")


def places():
    return ", ".join(f"{name}.hpp" for name in sorted(THIRD_PARTY))


def self_test():
    good = {
        "include/hvd/version.hpp": "#include <string_view>\n",
        "include/hvd/error.hpp": "#include <hvd/version.hpp>\n",
        "include/hvd/detail/a.hpp": "#include <hvd/error.hpp>\n#include <sys/mman.h>\n",
        "include/hvd/detail/b.hpp": '#include "a.hpp"\n',
        "include/hvd/dtype.hpp": "#include <hvd/detail/b.hpp>\n",
        "include/hvd/buffer.hpp": "#include <hvd/dtype.hpp>\n#include <span>\n",
        "include/hvd/eigen.hpp": "#include <Eigen/Core>\n#include <hvd/buffer.hpp>\n",
        "include/hvd/cuda/driver.hpp": "#include <cuda.h>\n#include <hvd/error.hpp>\n",
        "include/hvd/topology/gpus.hpp": "#include <hvd/cuda/driver.hpp>\n",
        "include/hvd/topology.hpp": "#include <hvd/topology/gpus.hpp>\n",
        "include/hvd/engine/nccl.hpp": "#include <hvd/topology.hpp>\n",
        "include/hvd/engine.hpp": "#include <hvd/topology.hpp>\n",
        "include/hvd/gpu.hpp": "#include <hvd/engine/nccl.hpp>\n",
        "include/hvd/transport.hpp": "/*\n#include <nonsense>\n*/\n// #include <nonsense>\n",
        "include/hvd/transport/shm.hpp": "# include <hvd/transport.hpp> // why\n#include <immintrin.h>\n",
        "include/hvd/algorithm/ring.hpp": '#include "../transport.hpp"\n',
        "include/hvd/algorithm/direct/mapped.hpp": "#include <hvd/transport.hpp>\n",
        "include/hvd/algorithm/direct.hpp": "#include <hvd/algorithm/direct/mapped.hpp>\n",
        "include/hvd/hvd.hpp": "#include <hvd/transport/shm.hpp>\n",
        "examples/x/main.cpp": '#include <hvd/hvd.hpp>\n#include <Eigen/Core>\n#include "own.hpp"\n#include <cstdio>\n',
        "examples/x/own.hpp": "#include <vector>\n",
        "bench/job.hpp": "#include <hvd/dtype.hpp>\n",
        "bench/cases/fused.hpp": "#include <bench/job.hpp>\n",
        "bench/rank/worker.cpp": "#include <bench/cases/fused.hpp>\n",
        "bench/support/where.py": "import os\n",
        "bench/comparison/plan.py": "from support.where import commit\n",
        "tests/dtype.cpp": 'TEST_CASE("x") {}\n',
        "tests/meson.build": "names: ['dtype']\n",
    }
    # What is changed, and the words that must be said about it.
    mistakes = [
        ("include/hvd/dtype.hpp", "\n#include <hvd/buffer.hpp>\n", "dtype.hpp:2: includes form a cycle"),
        ("include/hvd/dtype.hpp", "#include <hvd/hvd.hpp>\n", "dtype.hpp:1: <hvd/hvd.hpp> is on level 11, above"),
        ("include/hvd/buffer.hpp", '#include "transport.hpp"\n', "buffer.hpp:1: <hvd/transport.hpp> is on level 3, above"),
        ("include/hvd/algorithm/ring.hpp", "#include <hvd/transport/shm.hpp>\n", "is on the same level (4)"),
        ("include/hvd/transport/shm.hpp", "#include <hvd/algorithm/ring.hpp>\n", "is on the same level (4)"),
        ("include/hvd/hvd.hpp", "#include <hvd/algorithm/direct/mapped.hpp>\n", "is a part of algorithm/direct.hpp, included"),
        ("include/hvd/detail/a.hpp", "#include <hvd/dtype.hpp>\n", "a.hpp:1: <hvd/dtype.hpp> is on level 2, above"),
        ("include/hvd/pin.hpp", "namespace hvd::inline HVD_ABI::detail {\n", "pin.hpp:1: the header opens only hvd::detail"),
        ("include/hvd/detail/a.hpp", '#include "b.hpp"\n', "includes form a cycle: detail/"),
        ("include/hvd/version.hpp", "#include <hvd/detail/b.hpp>\n", "includes form a cycle"),
        ("include/hvd/buffer.hpp", "#include <Eigen/Core>\n", "<Eigen/Core> is no standard or system header"),
        ("include/hvd/topology.hpp", "#include <cuda.h>\n", "<cuda.h> is no standard or system header"),
        ("include/hvd/hvd.hpp", "#include <hvd/engine/nccl.hpp>\n", "is a part of engine.hpp, included"),
        ("include/hvd/eigen.hpp", "#include <mpi.h>\n", "<mpi.h> is no standard or system header"),
        ("include/hvd/hvd.hpp", "#include <hvd/eigen.hpp>\n", "<hvd/eigen.hpp> needs a third party"),
        ("include/hvd/buffer.hpp", '#include "../../tests/main.hpp"\n', "must not include from tests/"),
        ("include/hvd/buffer.hpp", "#include <examples/x/own.hpp>\n", "must not include from examples/"),
        ("include/hvd/buffer.hpp", "#include <hvd/missing.hpp>\n", "<hvd/missing.hpp> does not exist"),
        ("include/hvd/buffer.hpp", "#include SOMETHING\n", "cannot be checked"),
        ("include/hvd/new.hpp", "\n", "new.hpp:1: the header has no level"),
        ("include/hvd/buffer.hpp", "\n" * 401, "buffer.hpp:401: the header has 401 lines"),
        ("tests/unlisted.cpp", 'TEST_CASE("x") {}\n', "unlisted.cpp:1: the test is never run"),
        ("examples/x/own.hpp", '#include "../../tests/support/skip.hpp"\n', "own.hpp:1: \"../../tests/support/skip.hpp\" is not"),
        ("examples/x/own.hpp", "#include <hvd/detail/a.hpp>\n", "<hvd/detail/a.hpp> is a part; an example"),
        ("include/hvd/buffer.hpp", "// ::open(\nint fd = ::open(path, 0);\n", "buffer.hpp:2: ::open( may return 0, 1 or 2"),
        ("include/hvd/dtype.hpp", "int fd = ::fcntl(0, F_DUPFD_CLOEXEC, 0);\n", "dtype.hpp:1: F_DUPFD may return 0, 1 or 2"),
        ("bench/job.hpp", "#include <bench/cases/fused.hpp>\n", "job.hpp:1: bench/ knows nothing of bench/cases; allowed: none"),
        ("bench/job.hpp", "#include <bench/job.hpp>\n", "job.hpp:1: includes form a cycle"),
        ("bench/cases/fused.hpp", "#include <bench/rank/place.hpp>\n", "bench/cases knows nothing of bench/rank"),
        ("bench/attic/x.hpp", "#include <bench/job.hpp>\n", "x.hpp:1: bench/attic/ is no room"),
        ("bench/support/where.py", "from comparison import plan\n", "bench/support knows nothing of bench/comparison"),
        ("examples/x/own.hpp", "#include <boost/any.hpp>\n", "<boost/any.hpp> is not hvd, Eigen"),
    ]
    wrong = 0
    for changed, text, expected in [(None, None, None), *mistakes]:
        with tempfile.TemporaryDirectory() as root:
            for name, content in {**good, **({changed: text} if changed else {})}.items():
                path = Path(root, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
            found = Check(root).run().violations
        right = any(expected in violation for violation in found) if changed else not found
        if not right:
            wrong += 1
            print(f"self-test: with {changed or 'no mistake'}: expected {expected!r}, found {found}")
    print(f"self-test: {len(mistakes)} mistakes and a tree without one, {wrong} judged wrongly")
    return 1 if wrong else 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    if not (root / "include" / "hvd").is_dir():
        print(f"layering.py: {root} has no include/hvd", file=sys.stderr)
        return 2
    check = Check(root).run()
    for sentence in [*check.warnings, *check.violations]:
        print(sentence)
    return 1 if check.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
