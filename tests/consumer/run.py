#!/usr/bin/env python3
"""Builds and runs the program of this folder in each way that a project can take hvd in, and checks what it prints.

Everything happens in a temporary folder, and nothing is downloaded. A tool that is not there makes a case a SKIP.
"""

import argparse
import filecmp
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# All that a project needs which brings hvd in a folder of its own.
VENDORED = ("include", "CMakeLists.txt", "meson.build", "meson.options", "LICENSE")
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror"]
MATTERS_OF_STYLE = (
    "c++98-compat", "c++98-compat-pedantic", "c++20-compat", "comma", "ctad-maybe-unsupported", "disabled-macro-expansion",
    "exit-time-destructors", "float-equal", "padded", "switch-enum", "unsafe-buffer-usage", "weak-vtables",
)  # fmt: skip
# Tools of the build under test; a user has them in PATH.
MESON = shlex.split(os.environ.get("MESONINTROSPECT", "meson introspect"))[:-1]
SKIP = 77


class Wrong(Exception):
    """What is wrong, for the reader."""


def need(*tools):
    """Ends the test as skipped unless all tools are there."""
    for tool in tools:
        if shutil.which(tool) is None:
            print(f"SKIP: {tool} is not installed")
            sys.exit(SKIP)


def run(*command, folder=None, expected=0, **environment):
    """Runs a command; returns what it printed, errors included."""
    words = [str(word) for word in command]
    result = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **{key: str(value) for key, value in environment.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    if result.returncode != expected:
        raise Wrong(f"exit code {result.returncode} of `{shlex.join(words)}`:\n{result.stdout}")
    return result.stdout


def version():
    """The version as version.hpp has it."""
    text = (ROOT / "include" / "hvd" / "version.hpp").read_text()
    return ".".join(re.search(rf"#define HVD_VERSION_{part} +(\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def check(program):
    printed = run(program)
    promised = f"hvd {version()}: 3 20, 0.5 4\n"
    if printed != promised:
        raise Wrong(f"{program.name} printed {printed!r} and not {promised!r}")


def project(folder, name=None, headers=("allreduce", "launch")):
    """A user's project: the files of the case, and the two of the program; with these headers, which take half the time of
    hvd.hpp, where that is not among them."""
    app = folder / "app"
    shutil.copytree(HERE / name, app) if name else app.mkdir()
    lines = "\n".join(f"#include <hvd/{header}.hpp>" for header in headers)
    for source in ("main.cpp", "other.cpp"):
        (app / source).write_text((HERE / source).read_text().replace("#include <hvd/hvd.hpp>", lines))
    return app


def vendor(folder):
    """Copies hvd's own files, and no test, example or benchmark."""
    folder.mkdir(parents=True)
    for name in VENDORED:
        source = ROOT / name
        shutil.copytree(source, folder / name) if source.is_dir() else shutil.copy(source, folder)


def install(folder):
    """hvd as a user installs it, moved elsewhere after that; returns the prefix."""
    off = ["-Dtests=disabled", "-Dexamples=disabled", "-Dbench=disabled"]
    vendor(folder / "hvd")
    run(*MESON, "setup", *off, "--prefix", folder / "prefix", folder / "hvd-build", folder / "hvd")
    run(*MESON, "install", "-C", folder / "hvd-build")
    return folder / "prefix"


def cmake_build(app, *options):
    need("cmake")
    run("cmake", "-G", "Ninja", "-S", app, "-B", app / "build", "-DCMAKE_BUILD_TYPE=", *options)
    run("cmake", "--build", app / "build")
    return app / "build" / "app"


def files_below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def installed_headers(prefix):
    """Every header is installed, and nothing else below include."""
    there, ours = prefix / "include" / "hvd", ROOT / "include" / "hvd"
    if files_below(there) != files_below(ours) or files_below(prefix / "include") != [
        f"hvd/{name}" for name in files_below(ours)
    ]:
        raise Wrong(f"installed headers are {files_below(prefix / 'include')}")
    different = filecmp.cmpfiles(there, ours, files_below(ours), shallow=False)[1:]
    if any(different):
        raise Wrong(f"installed headers that differ: {different}")


def meson_subproject(folder, _):
    app = project(folder, "meson_subproject")
    vendor(app / "subprojects" / "hvd")
    shutil.copytree(ROOT / "c", app / "subprojects" / "hvd" / "c")
    # Plain, because it takes the library three times as long to be optimised.
    options = ["--wrap-mode=nodownload", "--force-fallback-for=hvd", "-Dhvd:buildtype=plain"]
    run(*MESON, "setup", *options, app / "build", folder=app)
    run(*MESON, "compile", "-C", app / "build")
    check(app / "build" / "app")
    check(app / "build" / "app_compiled")
    # A project that vendors hvd installs its own product only.
    run(*MESON, "install", "-C", app / "build", "--destdir", folder / "destination")
    if [Path(name).name for name in files_below(folder / "destination")] != ["app"]:
        raise Wrong(f"the project installs {files_below(folder / 'destination')}")


def cmake_find_package(folder, _):
    need("cmake")
    prefix = install(folder).rename(folder / "moved")  # an installation may be moved
    installed_headers(prefix)
    app = project(folder, "cmake_find_package", ["hvd"])
    check(cmake_build(app, f"-DCMAKE_PREFIX_PATH={prefix}"))
    which_versions_serve(app)


def which_versions_serve(app):
    """A later patch serves, another minor version does not before 1.0, and neither does another major version."""
    major, minor, patch = (int(number) for number in version().split("."))
    wishes = {
        f"{major}.{minor}": True,
        version(): True,
        f"{version()} EXACT": True,
        f"{major}.{minor}.{patch + 1}": False,
        f"{major}.{minor + 1}": False,
        f"{major + 1}.0": False,
        f"{major}.{minor}...{major}.{minor + 1}": True,
        f"{major + 1}.0...{major + 2}.0": False,
    }
    if minor > 0:
        wishes[f"{major}.{minor - 1}"] = major > 0
    lines = [f'find_package(hvd {wish} QUIET)\nmessage(STATUS "<{wish}> ${{hvd_FOUND}}")\n' for wish in wishes]
    (app / "CMakeLists.txt").open("a").write("".join(lines))
    found = dict(re.findall(r"-- <(.+)> (\d)", run("cmake", app / "build")))
    wrong = {wish: found.get(wish) for wish, right in wishes.items() if found.get(wish) != str(int(right))}
    if wrong:
        raise Wrong(f"find_package(hvd VERSION) accepts or refuses wrongly: {wrong}")


def cmake_add_subdirectory(folder, _):
    app = project(folder, "cmake_add_subdirectory")
    vendor(app / "external" / "hvd")
    check(cmake_build(app))
    # A project that vendors hvd installs its own product only, and two parts of it may each bring hvd.
    run("cmake", "--install", app / "build", "--prefix", folder / "destination")
    if files_below(folder / "destination"):
        raise Wrong(f"the project installs {files_below(folder / 'destination')}")
    (app / "CMakeLists.txt").open("a").write("add_subdirectory(external/hvd again)\n")
    run("cmake", app / "build")


def cmake_export(folder, _):
    """A library that links the vendored hvd is exported and installed, with hvd where that is wanted."""
    need("cmake")
    library = project(folder, "cmake_export")
    vendor(library / "external" / "hvd")
    prefix, together = folder / "prefix", folder / "together"
    exported = ["lib/cmake/trainer/trainer-targets.cmake"]
    run("cmake", "-G", "Ninja", "-S", library, "-B", library / "build")
    run("cmake", "--install", library / "build", "--prefix", prefix)
    if files_below(prefix) != exported:
        raise Wrong(f"the project installs {files_below(prefix)}")
    run("cmake", "--install", library / "build", "--prefix", prefix, "--component", "hvd")
    installed_headers(prefix)
    run("cmake", "-DHVD_INSTALL=ON", library / "build")
    run("cmake", "--install", library / "build", "--prefix", together)
    if files_below(together) != files_below(prefix):
        raise Wrong(f"with HVD_INSTALL the project installs {files_below(together)}")
    shutil.rmtree(library)
    app = project(folder, "cmake_find_package")
    with (app / "CMakeLists.txt").open("a") as script:
        script.write(f'include("{prefix / exported[0]}")\ntarget_link_libraries(app PRIVATE trainer::trainer)\n')
    check(cmake_build(app, f"-DCMAKE_PREFIX_PATH={prefix}"))


def cmake_fetch_content(folder, _):
    app = project(folder, "cmake_fetch_content")
    vendor(app / "external" / "hvd")
    check(cmake_build(app, "-DFETCHCONTENT_FULLY_DISCONNECTED=ON"))


def makefile(folder, arguments):
    need("make", "pkg-config")
    prefix = install(folder)
    app = project(folder, "makefile")
    run("make", "-j2", "-C", app, f"CXX={arguments.cxx}", PKG_CONFIG_PATH=prefix / "share" / "pkgconfig")
    check(app / "app")


def plain(folder, arguments):
    """One command, with the warnings of whoever compiles hvd as part of their own sources."""
    app = project(folder, headers=["hvd"])
    run(arguments.cxx, "-std=c++20", *STRICT, "-I", ROOT / "include", "main.cpp", "other.cpp", "-o", "app", folder=app)
    check(app / "app")


def options(folder, arguments):
    """With what else users compile: a later standard, checks of the library, optimisation over all files, no RTTI."""
    app = project(folder)
    for flags in (["-std=c++23", "-D_GLIBCXX_ASSERTIONS"], ["-std=c++20", "-O1", "-flto", "-fno-rtti"]):
        run(arguments.cxx, *flags, *STRICT, "-I", ROOT / "include", "main.cpp", "other.cpp", "-o", "app", folder=app)
        check(app / "app")
    if shutil.which("clang++-16"):  # every warning but those that are about style, or about layout
        (app / "all.cpp").write_text("#include <hvd/hvd.hpp>\n")
        style = [f"-Wno-{name}" for name in MATTERS_OF_STYLE]
        run("clang++-16", "-std=c++20", "-Weverything", *style, "-Werror", "-fsyntax-only", "-I", ROOT / "include", "all.cpp", folder=app)


def plugin(folder, arguments):
    """A library that is loaded at run time, and unloaded again."""
    source = HERE / "plugin"
    # Without symbols that are unique in a process, which would keep the library loaded.
    unload = ["-fno-gnu-unique"] if "clang" not in arguments.cxx else []
    shared = ["-shared", "-fPIC", *unload, "-I", ROOT / "include"]
    run(arguments.cxx, "-std=c++20", *STRICT, *shared, source / "plugin.cpp", "-o", folder / "plugin.so", "-pthread")
    run(arguments.cxx, "-std=c++20", source / "main.cpp", "-o", folder / "app", "-ldl")
    if (printed := run(folder / "app", folder / "plugin.so")) != "3 0\n" * 3:
        raise Wrong(f"the program printed {printed!r}")


def elsewhere(folder, arguments):
    """Installed by DESTDIR, and moved into a folder with a space in its name: pkg-config and CMake find it there."""
    need("cmake", "pkg-config")
    off = ["-Dtests=disabled", "-Dexamples=disabled", "-Dbench=disabled"]
    vendor(folder / "hvd")
    run(*MESON, "setup", *off, "--prefix", "/opt/hvd", folder / "build", folder / "hvd")
    run(*MESON, "install", "-C", folder / "build", DESTDIR=folder / "stage")
    prefix = (folder / "stage" / "opt" / "hvd").rename(folder / "a prefix")
    app = project(folder, "cmake_find_package")
    check(cmake_build(app, f"-DCMAKE_PREFIX_PATH={prefix}"))
    words = run("pkg-config", "--cflags", "hvd", PKG_CONFIG_PATH=prefix / "share" / "pkgconfig")
    folders = [os.path.normpath(word[2:]) for word in shlex.split(words) if word.startswith("-I")]
    if folders != [str(prefix / "include")]:
        raise Wrong(f"pkg-config --cflags hvd printed {words!r}")


def single_header(folder, arguments):
    app = project(folder, headers=["hvd"])
    (app / "hvd").mkdir()
    run(sys.executable, ROOT / "tools" / "single_header", "-o", app / "hvd" / "hvd.hpp")
    static = ["-static", "-Wl,--fatal-warnings"]
    run(arguments.cxx, "-std=c++20", *STRICT, *static, "-I", ".", "main.cpp", "other.cpp", "-o", "app", folder=app)
    check(app / "app")


def libraries(folder, arguments):
    """libhvd from C and from C++17, and a C++20 program with hvd-compiled, by pkg-config, from a build that has them."""
    need("cc", "pkg-config")
    run(*MESON, "install", "--no-rebuild", "-C", arguments.build, "--destdir", folder / "moved")
    found = sorted({path.parent for path in (folder / "moved").rglob("*.pc")})
    paths = {"PKG_CONFIG_PATH": ":".join(map(str, found)), "PKG_CONFIG_SYSROOT_DIR": folder / "moved"}
    paths |= {"PKG_CONFIG_ALLOW_SYSTEM_CFLAGS": 1, "PKG_CONFIG_ALLOW_SYSTEM_LIBS": 1}  # where the prefix is /usr
    where = {"LD_LIBRARY_PATH": next((folder / "moved").rglob("libhvd.so")).parent}

    def flags(package, *more):
        return run("pkg-config", "--cflags", "--libs", *more, package, **paths).split()

    sources = HERE / "libraries"
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    programs = {
        "c11": ["cc", "-std=c11", *strict, sources / "mean.c", *flags("hvd-c")],
        "c++17": [arguments.cxx, "-std=c++17", *strict, "-x", "c++", sources / "mean.c", *flags("hvd-c")],
        "compiled": [arguments.cxx, "-std=c++20", *strict, sources / "mean.cpp", *flags("hvd-compiled")],
    }
    for name, command in programs.items():
        run(*command, "-o", folder / name)
        printed = run(folder / name, **where)
        promised = "1 2 0.5" + (", 1 1\n" if name == "compiled" else "\n")
        if printed != promised:
            raise Wrong(f"{name} printed {printed!r} and not {promised!r}")


def private_libraries(folder, arguments):
    """Two libraries, each with c/hvd.cpp of another version for itself, in one program."""
    need("cc")
    libraries = []
    for number, name in enumerate(("first", "second")):
        tree = folder / name
        shutil.copytree(ROOT / "include", tree / "include")
        shutil.copytree(ROOT / "c", tree / "c")
        header = tree / "include" / "hvd" / "version.hpp"
        header.write_text(header.read_text().replace("HVD_VERSION_PATCH 0", f"HVD_VERSION_PATCH {number + 7}"))
        hidden = ["-fPIC", "-fvisibility=hidden", "-DHVD_API=", "-I", tree / "include", "-c"]
        run(arguments.cxx, "-std=c++20", *hidden, tree / "c" / "hvd.cpp", "-o", tree / "hvd.o")
        run("cc", *hidden, f"-DNAME={name}", HERE / "libraries" / "private.c", "-o", tree / "private.o")
        libraries.append(folder / f"lib{name}.so")
        run(arguments.cxx, "-shared", tree / "hvd.o", tree / "private.o", "-o", libraries[-1], "-pthread")
    run("cc", "-I", ROOT / "include", HERE / "libraries" / "private.c", *libraries, "-o", folder / "app")
    printed = run(folder / "app", LD_LIBRARY_PATH=folder)
    versions = [version().rsplit(".", 1)[0] + f".{patch}" for patch in (7, 8)]
    if printed != " ".join(versions) + "\n":
        raise Wrong(f"the program printed {printed!r} and not the versions {versions}")


def openmp(folder, arguments):
    """Ranks that use a pool of threads, and a process that has one and may not be forked."""
    source = HERE / "openmp" / "main.cpp"
    run(arguments.cxx, "-std=c++20", *STRICT, "-fopenmp", "-I", ROOT / "include", source, "-o", folder / "app")
    printed = run(folder / "app")
    promised = "3000\nhvd: fork_run: this process has 2 threads, "
    if not printed.startswith(promised):
        raise Wrong(f"the program printed {printed!r}, which does not begin with {promised!r}")


def bench(folder, arguments):
    """The installed hvd-bench of a build that has one, away from the build and with nothing beside it."""
    run(*MESON, "install", "--no-rebuild", "-C", arguments.build, "--destdir", folder / "moved")
    programs = [path for path in (folder / "moved").rglob("hvd-bench") if path.is_file()]
    if len(programs) != 1:
        raise Wrong(f"meson install put hvd-bench at {programs}")
    printed = run(programs[0], "allreduce", "-n", "2", "-b", "8", "-e", "8", "--iters", "2", folder=folder)
    if not re.search(r"^ +8 +2 +float +sum ", printed, re.MULTILINE):
        raise Wrong(f"hvd-bench printed no line of 8 bytes:\n{printed}")


CASES = [
    meson_subproject,
    cmake_find_package,
    cmake_add_subdirectory,
    cmake_export,
    cmake_fetch_content,
    makefile,
    plain,
    options,
    plugin,
    elsewhere,
    single_header,
    libraries,
    private_libraries,
    openmp,
    bench,
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=[case.__name__ for case in CASES])
    parser.add_argument("--cxx", default=os.environ.get("CXX", "g++"), help="the C++ compiler (default: %(default)s)")
    parser.add_argument("--build", help="for `bench` and `libraries`: a build folder that has them")
    arguments = parser.parse_args()
    if arguments.case in ("bench", "libraries") and not arguments.build:
        parser.error(f"{arguments.case} needs --build")
    os.environ["CXX"] = arguments.cxx
    with tempfile.TemporaryDirectory(prefix="hvd-consumer-") as folder:
        try:
            next(case for case in CASES if case.__name__ == arguments.case)(Path(folder), arguments)
        except Wrong as wrong:
            print(f"{arguments.case}: {wrong}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
