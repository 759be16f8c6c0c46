"""How a program that XLA has compiled calls the engine: the attributes of the call ``hvd_collective``."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from hvd import _core
from hvd.core.reduce_op import Reduction


def program_call(
    kind: str, operations: Iterable[tuple[int, str, Reduction]], process_set: int, root: int = 0
) -> list[int]:
    """The attribute "how", which `_core` reads. Each operation takes the next tensors of the call: their number, its
    name and its reduction. The attribute "names" is the names without anything between them.
    """
    numbers = [process_set, _core.operations[kind], root]
    for tensors, name, how in operations:
        numbers += [tensors, int(how.op), how.wire, _bits(how.prescale), _bits(how.postscale), len(name.encode())]
    return numbers


def _bits(value: float) -> int:
    """The bits of a double, which survive unchanged in a program's text."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])
