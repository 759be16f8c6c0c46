"""A backend for ``torch.distributed``: ``init_process_group("hvd")``.

Ranks of one host share memory; those of several hosts go over MPI, where one has started them. Importing this registers
the backend; where the package is installed, PyTorch does it by itself.
"""

from __future__ import annotations

from hvd.torch_backend import register

__all__ = ["ProcessGroup"]

register()


def __getattr__(name: str) -> object:
    if name == "ProcessGroup":
        from hvd.torch.distributed.process_group import ProcessGroup

        return ProcessGroup
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
