#!/usr/bin/env python3
"""What a program's compiler does not say about the headers, all below include/.

usage: headers.py alone CXX     each compiles alone, twice in one file, without RTTI (but for torch.hpp), without a warning
       headers.py macros CXX    together they compile behind the macros of others
       headers.py together CXX  together they compile without a warning of CXX, GCC, and none defines a symbol that a
                                second file would define again, or keep a copy of

The first two take Clang, if it is installed, instead of CXX. A compiler or a third party that is not there makes a SKIP.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

INCLUDE = Path(__file__).resolve().parent.parent.parent / "include"
HEADERS = sorted(path.relative_to(INCLUDE).as_posix() for path in INCLUDE.rglob("*.h*") if path.suffix in (".hpp", ".h"))
CLANG = "clang++-16"
MPIS = ("mpich", "ompi-c")  # pkg-config's names
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wdouble-promotion", "-Wshadow", "-Werror"]
# Three more of g++ contradict the project's style: -Wfloat-equal (a factor of exactly 1 means no scaling), -Wswitch-enum
# (`default` stands for the other values), -Weffc++ (members are initialised where they are declared).
STRICT_OF_GCC = ["-Wuseless-cast"]
# Headers that so many others include are precompiled for them.
POPULAR = 6
# Well-known macros of others, whose names hvd does not use; with parentheses those that take arguments. (version.hpp names
# those that it refuses.)
MACROS = """
signals slots emit foreach forever SIGNAL(a) SLOT(a)
None Bool Status Success True False Always Never Complex Above Below Opposite Unsorted CursorShape CurrentTime Expose Root
KeyPress FocusIn Region GrayScale DirectColor DestroyAll Convex InputOnly ControlMask BadValue
near far small hyper interface pascal cdecl huge IN OUT OPTIONAL CONST VOID ERROR NO_ERROR IGNORE RELATIVE ABSOLUTE DIFFERENCE
TRUE FALSE DELETE STRICT DOMAIN OVERFLOW BOOL BYTE WORD DWORD CALLBACK GetObject GetMessage SendMessage Yield TEXT(a)
length(a) warning nrows(a) ncols(a) install(a) allocVector(a,b) PROTECT(a) PI Calloc(a,b) Free(a) Memcpy(a,b,c)
CHECK(a) LOG(a) VLOG(a) DCHECK(a) CHECK_EQ(a,b) LOG_IF(a,b) INFO WARNING FATAL
verify(a) require(a) check_noerr(a) nocheck(a) require_noerr(a,b) ASSERT(a) EXPECT(a) REQUIRE(a) TEST(a,b) FAIL() SUCCEED()
B0 B1 bit(a) bitRead(a,b) bitSet(a,b) word(a) boolean(a) abs(a) round(a) constrain(a,b,c) radians(a) degrees(a) sq(a)
HIGH LOW INPUT OUTPUT CHANGE RISING FALLING DEFAULT EXTERNAL INTERNAL SERIAL DISPLAY interrupts() noInterrupts()
unix linux i386 I major(a) minor(a) makedev(a,b) _(a) N_(a) likely(a) unlikely(a) min_t(a,b,c) max_t(a,b,c)
MIN(a,b) MAX(a,b) ABS(a) ARRAY_SIZE(a) container_of(a,b,c) roundup(a,b) howmany(a,b) setbit(a,b) isset(a,b) NBBY
G H J K L O Q W Y YES NO nil Nil UNUSED(a) DEPRECATED EXPORT API DEBUG TRACE VERSION
"""

# Templates have no symbols until somebody uses them.
USES = """
struct use {
  template <class T>
  void operator()(T& comm) const {
    float in[2] = {}, out[2] = {};
    hvd::allreduce(comm, in, hvd::average);
    hvd::allreduce(comm, in, out, hvd::scaled(hvd::sum, 0.5));
    hvd::reduce(comm, in, hvd::max);
    hvd::broadcast(comm, in);
    hvd::alltoall(comm, in, out);
    hvd::scan(comm, in);
    hvd::exscan(comm, in);
    comm.split(0, comm.rank()).barrier();
    auto shared = comm.template alloc_shared<float>(2);
    hvd::allreduce(comm, shared);
  }
};
int main() {
  hvd::thread_run(2, use{});
  return hvd::fork_run(2, use{});
}
"""


def failure(command, source=None):
    """What the command says if it fails, else nothing."""
    result = subprocess.run([str(word) for word in command], input=source, capture_output=True, text=True)
    return None if result.returncode == 0 else result.stdout + result.stderr


def flags(package):
    """How to find a third party's headers, or None if it is not installed."""
    found = subprocess.run(["pkg-config", "--cflags", package], capture_output=True, text=True)
    return None if found.returncode else [word.replace("-I", "-isystem", 1) for word in found.stdout.split()]


def torch_flags():
    """How to find libtorch, which comes with PyTorch, in this Python or the project's own; None if there is none."""
    look = "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    for python in (sys.executable, INCLUDE.parent / ".venv" / "bin" / "python"):
        if shutil.which(python) is None:
            continue
        found = subprocess.run([python, "-c", look], capture_output=True, text=True).stdout.strip()
        if (Path(found) / "include" / "torch").is_dir():
            return ["-isystem", f"{found}/include", "-isystem", f"{found}/include/torch/csrc/api/include"]
    return None


def includes(headers):
    return "".join(f"#include <{header}>\n" for header in headers)


def standard_headers():
    """What the headers include of the standard library, outside conditions."""
    found = set()
    for header in HEADERS:
        found.update(re.findall(r"^#include <(?!hvd_)([a-z_]+)>", (INCLUDE / header).read_text(), re.MULTILINE))
    return sorted(found)


def included():
    """The headers that each includes, outside conditions; and all that come with these, itself too."""
    direct = {}
    for header in HEADERS:
        text = re.sub(r"^#if.*?^#endif", "", (INCLUDE / header).read_text(), flags=re.MULTILINE | re.DOTALL)
        direct[header] = [name for name in re.findall(r"^#include <([^>]+)>", text, re.MULTILINE) if name in HEADERS]
    closure = {}

    def close(header):
        if header not in closure:
            closure[header] = {header}.union(*map(close, direct[header]))
        return closure[header]

    for header in HEADERS:
        close(header)
    return direct, closure


def alone(cxx, command, folder):
    """A header is compiled behind the largest of those that it includes and that are precompiled. That changes nothing of
    what it can see, and takes half of the time. (Clang's cannot be based on each other: some then crash it.)"""
    direct, closure = included()
    users = Counter(name for names in direct.values() for name in names)
    popular = [header for header in HEADERS if users[header] >= POPULAR and cxx == CLANG]

    def compile(header):
        library = folder / f"{header.replace('/', '-')}.pch"
        base = max((closure[header] & set(popular)) - {header}, key=lambda name: len(closure[name]), default=None)
        if header in popular:
            how = ["-x", "c++-header", "-fpch-instantiate-templates", "-o", library]
        elif base and header != "hvd/torch.hpp":
            how = ["-fsyntax-only", "-x", "c++", "-include-pch", folder / f"{base.replace('/', '-')}.pch"]
        else:
            how = ["-fsyntax-only", "-x", "c++"]
        rtti = [] if header == "hvd/torch.hpp" else ["-fno-rtti"]  # libtorch needs it
        words = failure([*command, *rtti, *STRICT, *how, "-"], includes([header, header]))
        return words and f"{header} alone:\n{words}"

    with ThreadPoolExecutor(2) as pool:
        first = [words for words in pool.map(compile, popular) if words]
        # (The parts of torch.hpp take as long as torch.hpp, which includes little else.)
        others = [header for header in HEADERS if header not in popular and not header.startswith("hvd/torch/")]
        return first or [words for words in pool.map(compile, others) if words]


def macros(cxx, command, folder):
    # Third parties would not compile behind them.
    ours = [header for header in HEADERS if not re.search("mpi|torch|eigen", header)]
    theirs = "".join(f"#define {macro} = a macro =\n" for macro in MACROS.split())
    check = [*command, "-fno-rtti", *STRICT, "-fsyntax-only", "-x", "c++", "-"]
    words = failure(check, includes(standard_headers()) + theirs + includes(ours) + USES)
    return [f"behind macros of others:\n{words}"] if words else []


def together(cxx, command, folder):
    # Whatever is not inline is in the object, used or not.
    listing = folder / "all.o"
    check = [*command, *STRICT, *STRICT_OF_GCC, "-fkeep-static-functions", "-c", "-x", "c++", "-", "-o", listing]
    if words := failure(check, includes(HEADERS) + USES):
        return [words]
    output = subprocess.run(["nm", listing], check=True, capture_output=True, text=True).stdout
    # (n: a group of weak ones.) Functions, variables, their local statics, guards and tables of namespace hvd: not what
    # others make of its types. And whatever the linker would find twice.
    ours = re.findall(r"(\w) (_Z(?:GV|T[A-Z]|GR|Z)*N?[KVLOR]*3hvd\w*)$", output, re.MULTILINE)
    strong = re.findall(r"([A-TX-Z]) (?!main$)(\S+)$", output, re.MULTILINE)
    found = {*strong, *(pair for pair in ours if pair[0] not in "WVuUn")}
    wrong = [f"{symbol} is no inline definition (nm: {kind})" for kind, symbol in sorted(found)]
    if len(ours) < 500:
        wrong.append(f"there are only {len(ours)} symbols of hvd")
    return wrong


def main(arguments):
    checks = {"alone": alone, "macros": macros, "together": together}
    if len(arguments) != 2 or arguments[0] not in checks:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    check, cxx = arguments
    if check != "together" and shutil.which(CLANG):
        cxx = CLANG
    if shutil.which(cxx) is None:
        print(f"SKIP: {cxx} is not installed")
        return 77
    third_parties = flags("eigen3")
    mpi = next((found for found in map(flags, MPIS) if found is not None), None)
    if mpi is None:
        print("SKIP: neither MPICH nor Open MPI is installed, so hvd/transport/mpi*.hpp are left out")
        HEADERS[:] = [header for header in HEADERS if not header.startswith("hvd/transport/mpi")]
    third_parties += mpi or []
    torch = torch_flags()
    if torch is None:
        print("SKIP: there is no PyTorch, so hvd/torch*.hpp are left out")
        HEADERS[:] = [header for header in HEADERS if not header.startswith("hvd/torch")]
    third_parties += torch or []
    command = [cxx, "-std=c++20", "-I", INCLUDE, *third_parties]
    with tempfile.TemporaryDirectory(prefix="hvd-headers-") as folder:
        wrong = checks[check](cxx, command, Path(folder))
    for words in wrong:
        print(words)
    print(f"{len(HEADERS)} headers, {len(wrong)} complaints")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
