"""HorovodBasics, an object with the functions that all frameworks share."""

from __future__ import annotations

from typing import Any

import hvd

_COMMON = (
    "init shutdown is_initialized start_timeline stop_timeline size local_size cross_size rank local_rank cross_rank"
    " is_homogeneous mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built"
    " cuda_built rocm_built ProcessSet global_process_set add_process_set remove_process_set Average Sum Adasum Min Max"
    " Product"
).split()


class HorovodBasics:
    """`init`, `rank`, `size` and so on as methods. The arguments, paths of a compiled extension, mean nothing here."""

    def __init__(self, *paths: str) -> None:
        del paths

    def __getattr__(self, name: str) -> Any:
        if name not in _COMMON:
            raise AttributeError(f"HorovodBasics has no attribute {name!r}")
        return getattr(hvd, name)
