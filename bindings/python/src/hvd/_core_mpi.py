"""Connects ranks by the MPI of this process: that of its launcher, the one that mpi4py has loaded, or one that is found.

MPICH and its kin (Intel MPI, MVAPICH) have one binary interface, Open MPI another. hvd has an extension for each, which
is linked with no library: it uses the one that this module loads, or the one that HVD_MPI_LIBRARY names.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
from types import ModuleType

# The extension of each MPI, and the names of its library; Debian has renamed MPICH's.
_LIBRARIES = {"_mpich": ("libmpi.so.12", "libmpich.so.12"), "_openmpi": ("libmpi.so.40",)}


def _extension_for(text: str) -> str:
    """The extension for an MPI, by the text of MPI_Get_library_version."""
    return "_openmpi" if "Open MPI" in text else "_mpich"


def _version(library: ctypes.CDLL) -> str:
    text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
    library.MPI_Get_library_version(text, ctypes.byref(length))
    return text.value.decode(errors="replace")


def _order() -> list[str]:
    """The extensions, the most likely one first."""
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py is not None:
        first = _extension_for(mpi4py.Get_library_version())
    elif "OMPI_COMM_WORLD_SIZE" in os.environ:
        first = "_openmpi"
    else:
        first = "_mpich"
    return sorted(_LIBRARIES, key=lambda name: name != first)


def _is_built(extension: str) -> bool:
    return importlib.util.find_spec(f"hvd.{extension}") is not None


def _files() -> list[str]:
    """The files to try, the most likely one first: of the MPIs for which there is an extension."""
    if named := os.environ.get("HVD_MPI_LIBRARY"):
        return [named]
    names = [name for extension in _order() if _is_built(extension) for name in _LIBRARIES[extension]]
    return [path for name in names for path in (name, os.path.join(sys.prefix, "lib", name))]


def _load() -> ModuleType:
    """Loads an MPI and the extension for it. Raises ImportError with what has failed."""
    problems = [] if any(map(_is_built, _LIBRARIES)) else ["hvd was built without one"]
    for file in _files():
        try:
            # With its functions for all: the extension finds them there.
            library = ctypes.CDLL(file, ctypes.RTLD_GLOBAL)
            extension = _extension_for(_version(library))
        except (AttributeError, OSError) as error:
            problems.append(str(error))
            continue
        if _is_built(extension):
            return importlib.import_module(f"hvd.{extension}")
        problems.append(f"{file} is an MPI that hvd was built without ({extension[1:]})")
        break  # the extension of another MPI would call the functions of this one
    # Not ModuleNotFoundError, whose text `from hvd import _core_mpi` would replace.
    raise ImportError("no MPI: " + "; ".join(dict.fromkeys(problems)))


_extension = _load()
connect = _extension.connect
world = _extension.world
connect_group = _extension.connect_group
library = _extension.library
