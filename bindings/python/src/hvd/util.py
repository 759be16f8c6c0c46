"""Horovod's helpers that scripts import from its modules."""

from __future__ import annotations


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether ``num_rank`` is 1, 2, 4, 8 and so on. hvd's Adasum takes any number of ranks."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """False, even if the framework sees a GPU: the counterpart of Horovod's check for GPU reductions."""
    if verbose:
        print(f"Extension {ext_base_name} was NOT running with GPU.")
    return False


def check_installed_version(name: str, version: str, exception: BaseException | None = None) -> None:
    """Does nothing. hvd is not built for a framework version, so every version fits and HorovodVersionMismatchError is
    never raised.
    """
