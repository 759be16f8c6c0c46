#!/usr/bin/env python3
"""Computes adasum on whole vectors with NumPy, in float64, and writes what tests/algorithm/adasum.cpp compares with.

The definition is that of S. Maleki et al., "Scaling distributed training with adaptive summation", 2021; the order in
which ranks are combined is the one that include/hvd/algorithm/adasum.hpp documents. Inputs come from integers that both
this program and the test compute, and are exact in every floating-point type of hvd, bfloat16 included.

usage: adasum_reference.py            writes adasum_reference.inc beside this file
       adasum_reference.py --check    compares that file with what would be written; exit code 1 if it differs
The test itself needs no NumPy: the file is part of the sources.
"""

import argparse
import math
import sys
from pathlib import Path

import numpy as np

SEED = 20260611
KINDS = ("mixed", "parallel", "orthogonal", "holes")
COUNTS = (0, 1, 2, 7, 1000)
RANKS = range(1, 10)
STRIDE = 53  # of 1000 elements every 53rd is written, and the last one

OUTPUT = Path(__file__).with_suffix(".inc")


def noise(stream, count):
    """`count` integers from -31 to 31; the test has the same function."""
    h = np.arange(count, dtype=np.uint64) * 2654435761 + np.uint64(stream * 40503 + SEED)
    h &= 0xFFFFFFFF
    h ^= h >> np.uint64(15)
    h = (h * np.uint64(2246822519)) & np.uint64(0xFFFFFFFF)
    h ^= h >> np.uint64(13)
    return (h % np.uint64(63)).astype(np.int64) - 31


def vector(kind, rank, ranks, count):
    """The input of one rank."""
    common, own = noise(0, count), noise(rank + 1, count)
    if kind == "mixed":
        values = common + own
    elif kind == "parallel":
        values = common * 2 ** (rank % 3)
    elif kind == "orthogonal":
        values = np.where(np.arange(count) % ranks == rank, own, 0)
    else:  # every other rank has nothing to say
        values = own if rank % 2 == 1 else 0 * own
    return values / 32.0


def combine(a, b):
    """adasum of two vectors."""
    dot, aa, bb = (math.fsum(x * y) for x, y in ((a, b), (a, a), (b, b)))  # rounded once: the same on every machine
    return (1.0 - dot / (2.0 * aa) if aa else 1.0) * a + (1.0 - dot / (2.0 * bb) if bb else 1.0) * b


def adasum(vectors):
    """Pairs of the first ranks until the rest is a power of two, then a balanced tree of neighbours."""
    power = 1
    while 2 * power <= len(vectors):
        power *= 2
    pairs = len(vectors) - power
    level = [combine(vectors[2 * i], vectors[2 * i + 1]) for i in range(pairs)] + vectors[2 * pairs :]
    while len(level) > 1:
        level = [combine(level[i], level[i + 1]) for i in range(0, len(level), 2)]
    return level[0]


def picked(count):
    """Which elements are written."""
    return range(count) if count < STRIDE else [*range(0, count, STRIDE), count - 1]


def table():
    """The file: a row of C++ for each case."""
    lines = ["// Written by tests/algorithm/adasum_reference.py: kind, ranks, count, elements of the result."]
    for kind in KINDS:
        for ranks in RANKS:
            for count in COUNTS:
                result = adasum([vector(kind, rank, ranks, count) for rank in range(ranks)])
                values = ", ".join(repr(float(result[i])) for i in picked(count))
                lines.append(f'{{"{kind}", {ranks}, {count}, {{{values}}}}},')
    return "\n".join(lines) + "\n"


def main():
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form, allow_abbrev=False)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    text = table()
    if not arguments.check:
        OUTPUT.write_text(text)
        return 0
    same = OUTPUT.exists() and OUTPUT.read_text() == text
    print(f"{OUTPUT.name} is {'as it would be written' if same else 'another one: run without --check'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
