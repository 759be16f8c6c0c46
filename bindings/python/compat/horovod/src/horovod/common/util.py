"""Helpers of Horovod that scripts import."""

from __future__ import annotations

import contextlib
import os
import re
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Callable

from hvd.core import built
from hvd.exceptions import HorovodVersionMismatchError, get_version_mismatch_message  # noqa: F401
from hvd.util import check_installed_version, gpu_available, num_rank_is_power_2  # noqa: F401


@contextlib.contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Sets environment variables until the block ends. Those given as None stay as they are."""
    wanted = {name: value for name, value in variables.items() if value is not None}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def split_list(l: Sequence[Any], n: int) -> list[Any]:  # noqa: E741  # Horovod's names
    """`l` in `n` parts, in order, the first ones longer by one where need be. ZeroDivisionError for no parts."""
    each, more = divmod(len(l), n)
    ends = [(i + 1) * each + min(i + 1, more) for i in range(n)]
    return [l[start:end] for start, end in zip([0, *ends], ends)]


def is_iterable(x: Any) -> bool:
    """Whether a loop can go over it."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def get_ext_suffix() -> str:
    """How the names of compiled modules end."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raises ImportError where hvd has no part for a framework ("horovod.torch"). What remains says how a compiled
    extension would be found or built, and means nothing here.
    """
    framework = ext_name.rpartition(".")[2]
    if find_spec(f"hvd.{framework}") is None:
        raise ImportError(f"{ext_name}: hvd does not support {framework}")


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, Any], Any]:
    """The function of `op` and `average`, its older form, that gives the operation of `reduce_ops` that they mean.

    It raises ValueError where both are given.
    """

    def chosen(op: Any, average: Any) -> Any:
        if op is not None and average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        if op is not None:
            return op
        return reduce_ops.Sum if average is False else reduce_ops.Average

    return chosen


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether version `ver` is `target`, "major.minor.patch", or later; 2.0.0rc1 comes before 2.0.0.

    Raises ValueError for what is not a version, and for a `target` of another form.
    """
    for version in (ver, target):
        if not isinstance(version, str):
            raise ValueError(f"a version is a string, and this is {version!r}")
    if not re.fullmatch(r"\d+\.\d+\.\d+", target):
        raise ValueError(f"the target version is {target!r}, and must have the form major.minor.patch, such as 2.1.0")
    match = re.match(r"v?(\d+(?:\.\d+)*)[-_.]?(a|b|c|rc|alpha|beta|pre|dev)?", ver)
    if not match:
        raise ValueError(f"{ver!r} is not a version")
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
    return bool(built.gloo_built())


def mpi_built(verbose: bool = False) -> bool:
    """See hvd.mpi_built."""
    return bool(built.mpi_built())


def nccl_built(verbose: bool = False) -> int:
    """See hvd.nccl_built."""
    return int(built.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    """See hvd.ddl_built."""
    return bool(built.ddl_built())


def ccl_built(verbose: bool = False) -> bool:
    """See hvd.ccl_built."""
    return bool(built.ccl_built())


def cuda_built(verbose: bool = False) -> bool:
    """See hvd.cuda_built."""
    return bool(built.cuda_built())


def rocm_built(verbose: bool = False) -> bool:
    """See hvd.rocm_built."""
    return bool(built.rocm_built())
