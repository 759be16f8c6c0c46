#!/usr/bin/env python3
"""What the build's own compiler does not say by itself about the headers.

usage: headers.py clang CXX     each public header alone compiles with CXX, a Clang, without a warning and without RTTI
                                (but for torch.hpp); and all together with RTTI (that each part includes what it
                                needs, g++ says)
                                and they compile behind the macros of others
       headers.py symbols CXX   none defines a symbol that a second file would define again, or keep a copy of

A compiler that is not there makes a SKIP.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

INCLUDE = Path(__file__).resolve().parent.parent.parent / "include"
HEADERS = sorted(path.relative_to(INCLUDE).as_posix() for path in INCLUDE.rglob("*.hpp"))
MPIS = ("mpich", "ompi-c")  # pkg-config's names
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wdouble-promotion", "-Wshadow", "-Werror"]
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


def clang(cxx, third_parties, folder):
    """The standard library is precompiled, to save time: that a header includes what it needs of it, g++ has said."""
    command = [cxx, "-std=c++20", "-I", INCLUDE, *third_parties]
    library = folder / "standard.pch"
    make = [*command, "-fno-rtti", "-x", "c++-header", "-", "-o", library]
    if words := failure(make, includes(standard_headers())):
        return [words]

    def alone(header):
        # libtorch needs RTTI, and so nothing that was precompiled without.
        how = [] if header == "hvd/torch.hpp" else ["-fno-rtti", "-include-pch", library]
        check = [*command, *how, *STRICT, "-fsyntax-only", "-x", "c++", "-"]
        words = failure(check, includes([header, header]))
        return words and f"{header} alone:\n{words}"

    def together():
        words = failure([*command, *STRICT, "-fsyntax-only", "-x", "c++", "-"], includes(HEADERS) + USES)
        return words and f"all headers, with RTTI:\n{words}"

    def behind_macros():
        # Third parties would not compile behind them either.
        ours = [header for header in HEADERS if not re.search("mpi|torch|eigen", header)]
        macros = "".join(f"#define {macro} = a macro =\n" for macro in MACROS.split())
        check = [*command, "-fno-rtti", "-include-pch", library, "-fsyntax-only", "-x", "c++", "-"]
        words = failure(check, macros + includes(ours) + USES)
        return words and f"behind macros of others:\n{words}"

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(together), pool.submit(behind_macros)
        public = [header for header in HEADERS if header.rpartition("/")[0] in ("hvd", "hvd/algorithm", "hvd/transport")]
        return [words for words in [*pool.map(alone, public), first.result(), second.result()] if words]


def symbols(cxx, third_parties, folder):
    # Whatever is not inline is in the object, used or not.
    listing = folder / "all.o"
    command = [cxx, "-std=c++20", "-fkeep-static-functions", "-I", INCLUDE, *third_parties, "-c", "-x", "c++", "-"]
    if words := failure([*command, "-o", listing], includes(HEADERS) + USES):
        return [words]
    output = subprocess.run(["nm", listing], check=True, capture_output=True, text=True).stdout
    # (n: a group of weak ones.) Functions, variables, their local statics, guards and tables of namespace hvd: not what others make of its types.
    ours = re.findall(r"(\w) (_Z(?:GV|T[A-Z]|GR|Z)*N?[KVLOR]*3hvd\w*)$", output, re.MULTILINE)
    wrong = [f"{symbol} is no inline definition (nm: {kind})" for kind, symbol in ours if kind not in "WVuUn"]
    if len(ours) < 500:
        wrong.append(f"there are only {len(ours)} symbols of hvd")
    return wrong


def main(arguments):
    if len(arguments) != 2 or arguments[0] not in ("clang", "symbols"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    check, cxx = arguments
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
    with tempfile.TemporaryDirectory(prefix="hvd-headers-") as folder:
        wrong = {"clang": clang, "symbols": symbols}[check](cxx, third_parties, Path(folder))
    for words in wrong:
        print(words)
    print(f"{len(HEADERS)} headers, {len(wrong)} complaints")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
