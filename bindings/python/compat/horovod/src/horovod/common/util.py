"""Helpers of Horovod that scripts import."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec

from hvd import basics


@contextlib.contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Sets environment variables, or removes those given as None, until the block ends."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether version `ver` is `target`, "major.minor.patch", or later; 2.0.0rc1 comes before 2.0.0.

    Raises ValueError for what is no version, and for a `target` of another form.
    """
    for version in (ver, target):
        if not isinstance(version, str):
            raise ValueError(f"a version is a string, and this is {version!r}")
    if not re.fullmatch(r"\d+\.\d+\.\d+", target):
        raise ValueError(f"the target version is {target!r}, and must have the form major.minor.patch, as 2.1.0")
    match = re.match(r"v?(\d+(?:\.\d+)*)[-_.]?(a|b|c|rc|alpha|beta|pre|dev)?", ver)
    if not match:
        raise ValueError(f"{ver!r} is no version")
    release = [int(number) for number in match[1].split(".")]
    wanted = [int(number) for number in target.split(".")]
    release += [0] * (len(wanted) - len(release))
    if release[:3] == wanted and not any(release[3:]):
        return match[2] is None
    return release > wanted


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether hvd serves a framework ("torch", "tensorflow") and that is installed."""
    try:
        found = find_spec(f"hvd.{ext_base_name}") is not None and find_spec(ext_base_name) is not None
    except (ImportError, ValueError):
        found = False
    if verbose:
        print(f"Extension {ext_base_name} was {'' if found else 'NOT '}found.")
    return found


def gloo_built(verbose: bool = False) -> bool:
    """See hvd.gloo_built."""
    return bool(basics.gloo_built())


def mpi_built(verbose: bool = False) -> bool:
    """See hvd.mpi_built."""
    return bool(basics.mpi_built())


def nccl_built(verbose: bool = False) -> int:
    """See hvd.nccl_built."""
    return int(basics.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    """See hvd.ddl_built."""
    return bool(basics.ddl_built())


def ccl_built(verbose: bool = False) -> bool:
    """See hvd.ccl_built."""
    return bool(basics.ccl_built())


def cuda_built(verbose: bool = False) -> bool:
    """See hvd.cuda_built."""
    return bool(basics.cuda_built())


def rocm_built(verbose: bool = False) -> bool:
    """See hvd.rocm_built."""
    return bool(basics.rocm_built())
