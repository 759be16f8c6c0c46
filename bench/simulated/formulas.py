"""The time of a collective in closed form, on a network with one rank a host. Standard library only.

With p ranks, S bytes, b = S / p, alpha = latency + overhead, beta = 1 / bandwidth and gamma = 1 / reduction rate. A
rank may send its next message once overhead + bytes beta have passed, so a chunk that follows others pays no latency. L
is log2 p if p is a power of two, and m the number of chunks of c bytes. If p is not a power of two, some algorithms first
combine ranks: a of p act. That costs the same for all p above 1.5 a. Below that, ranks that do not take part are ahead,
and no formula here holds. The headers of the algorithms name the papers with the formulas.
"""

import math
from dataclasses import dataclass

RING_CHUNK = 256 << 10
TREE_CHUNK = 64 << 10


@dataclass(frozen=True)
class Link:
    """A network with one rank a host, in seconds a message and seconds a byte."""

    latency: float
    overhead: float
    beta: float
    gamma: float

    @property
    def alpha(self):
        return self.latency + self.overhead

    def hop(self, size):
        """The time of a message from departure to arrival."""
        return self.alpha + size * self.beta

    def busy(self, size):
        """The time until the next message can depart."""
        return self.overhead + size * self.beta


def chunks(size, chunk):
    return max(1, math.ceil(size / chunk))


def power(p):
    """log2 p, or None."""
    return p.bit_length() - 1 if p & (p - 1) == 0 else None


def acting(p):
    """The ranks that act, if p is a power of two or so much larger that all steps take as long; else None."""
    most = 1 << (p.bit_length() - 1)
    return most if most == p or 2 * p > 3 * most else None


def ring_reduce_scatter(link, p, size):
    block = size / p
    return (p - 1) * (chunks(block, RING_CHUNK) * link.alpha + block * (link.beta + link.gamma))


def ring_allgather(link, p, size):
    return (p - 1) * link.hop(size / p)


def ring_allreduce(link, p, size):
    return ring_reduce_scatter(link, p, size) + ring_allgather(link, p, size)


def ring_broadcast(link, p, size):
    number, chunk = chunks(size, RING_CHUNK), min(size, RING_CHUNK)
    return (p - 1) * link.hop(chunk) + (number - 1) * link.busy(chunk)


def recursive_doubling_allreduce(link, p, size):
    act = acting(p)
    if act is None:
        return None
    step = link.hop(size) + size * link.gamma
    return power(act) * step + (step + link.hop(size) if act != p else 0)


def recursive_doubling_allgather(link, p, size):
    steps = power(p)
    return None if steps is None else steps * link.alpha + (p - 1) / p * size * link.beta


def recursive_doubling_scan(link, p, size):
    """Up to 8 ranks. With more, ranks that have received everything are ahead, and their messages meet others."""
    steps = power(p)
    return None if steps is None or p > 8 else steps * (link.hop(size) + size * link.gamma)


def recursive_doubling_exscan(link, p, size):
    """As a scan, with two reductions in each step, but one in the first and one in the last."""
    steps = power(p)
    return None if steps is None or p > 8 else steps * link.hop(size) + 2 * (steps - 1) * size * link.gamma


def halving_doubling_allreduce(link, p, size):
    act = acting(p)
    if act is None:
        return None
    half = size / 2
    pairs = 2 * link.hop(half) + half * link.gamma + link.hop(size) if act != p else 0
    part = size * (act - 1) / act
    return pairs + 2 * power(act) * link.alpha + part * (2 * link.beta + link.gamma)


def halving_doubling_reduce(link, p, size):
    return halving_doubling_allreduce(link, p, size) if power(p) is not None else None


def halving_doubling_reduce_scatter(link, p, size):
    steps = power(p)
    return None if steps is None else steps * link.alpha + (p - 1) / p * size * (link.beta + link.gamma)


def tree_reduce(link, p, size):
    steps = power(p)
    if steps is None or size > TREE_CHUNK:
        return None
    return steps * (link.hop(size) + size * link.gamma)


def tree_broadcast(link, p, size):
    steps = power(p)
    if steps is None:
        return None
    number, chunk = chunks(size, TREE_CHUNK), min(size, TREE_CHUNK)
    return steps * (link.hop(chunk) + (number - 1) * link.busy(chunk))


def tree_allreduce(link, p, size):
    up = tree_reduce(link, p, size)
    return None if up is None else up + tree_broadcast(link, p, size)


def tree_blocks(link, p, size):
    """Gather and scatter: subtrees of half the size at each step, all through the root."""
    steps = power(p)
    return None if steps is None else steps * link.alpha + (p - 1) / p * size * link.beta


def bruck_allgather(link, p, size):
    return math.ceil(math.log2(p)) * link.alpha + (p - 1) / p * size * link.beta


def bruck_alltoall(link, p, size):
    steps = power(p)
    return None if steps is None else steps * link.hop(size / 2)


# Collective and algorithm: the function above, and how it is written.
RING = "(p-1) (m alpha + b (beta + gamma))"
STEPS = "L alpha + S (p-1)/p"
FORMULAS = {
    ("allreduce", "ring"): (ring_allreduce, "(p-1) ((m+1) alpha + b (2 beta + gamma))"),
    ("allreduce", "tree"): (tree_allreduce, "L (2 alpha + S (2 beta + gamma)), one chunk"),
    ("allreduce", "recursive_doubling"): (
        recursive_doubling_allreduce,
        "L (alpha + S (beta + gamma)); a of p: + 2 alpha + S (2 beta + gamma)",
    ),
    ("allreduce", "halving_doubling"): (
        halving_doubling_allreduce,
        "2 L alpha + S (a-1)/a (2 beta + gamma); a of p: + 3 alpha + S (2 beta + gamma/2)",
    ),
    ("reduce", "tree"): (tree_reduce, "L (alpha + S (beta + gamma)), one chunk"),
    ("reduce", "halving_doubling"): (halving_doubling_reduce, "2 " + STEPS + " (2 beta + gamma)"),
    ("reduce_scatter", "ring"): (ring_reduce_scatter, RING),
    ("reduce_scatter", "halving_doubling"): (halving_doubling_reduce_scatter, STEPS + " (beta + gamma)"),
    ("allgather", "ring"): (ring_allgather, "(p-1) (alpha + b beta)"),
    ("allgather", "recursive_doubling"): (recursive_doubling_allgather, STEPS + " beta"),
    ("allgather", "bruck"): (bruck_allgather, "ceil(log2 p) alpha + S (p-1)/p beta"),
    ("broadcast", "ring"): (ring_broadcast, "(p-1) (alpha + c beta) + (m-1) (overhead + c beta)"),
    ("broadcast", "tree"): (tree_broadcast, "L (alpha + c beta + (m-1) (overhead + c beta))"),
    ("alltoall", "ring"): (ring_allgather, "(p-1) (alpha + b beta)"),
    ("alltoall", "bruck"): (bruck_alltoall, "L (alpha + S/2 beta)"),
    ("gather", "tree"): (tree_blocks, STEPS + " beta"),
    ("scatter", "tree"): (tree_blocks, STEPS + " beta"),
    ("scan", "recursive_doubling"): (recursive_doubling_scan, "L (alpha + S (beta + gamma)), p up to 8"),
    ("exscan", "recursive_doubling"): (recursive_doubling_exscan, "L (alpha + S beta) + 2 (L-1) S gamma, p up to 8"),
}


def formula(link, collective, algorithm, p, size):
    """Seconds, or None without a closed form."""
    found = FORMULAS.get((collective, algorithm))
    return found and found[0](link, p, size)


def written(collective, algorithm):
    found = FORMULAS.get((collective, algorithm))
    return found[1] if found else None
