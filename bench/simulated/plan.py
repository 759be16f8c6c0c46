"""Which cases bench/scaling simulates, and on which networks. Standard library only."""

import math
from dataclasses import dataclass

from simulated.formulas import RING_CHUNK, TREE_CHUNK, Link

RANKS = (2, 3, 4, 7, 8, 16, 32, 64, 100, 128, 256, 512, 1000, 1024, 2048, 4096)
SIZES = tuple(8 << shift for shift in (0, 3, 6, 9, 12, 15, 18, 21, 23))  # 8 B to 64 MiB
FEW_SIZES = (4 << 10, 2 << 20, 64 << 20)
QUICK_RANKS = (2, 3, 4, 7, 16, 64, 256)
QUICK_SIZES = (8, 4 << 10, 256 << 10, 16 << 20)
PER_HOST = 8
MOST_HOST_RANKS = 512
ENGINE_RANKS = (2, 4, 8, 16, 32, 64, 100, 128, 256, 512, 1000, 1024)
ENGINE_QUICK_RANKS = (2, 3, 4, 8, 16, 64)
MOST_ENGINE_RANKS = 4096
ENGINE_TENSORS = 100
ENGINE_BYTES = 1 << 10
HOST_COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "broadcast")

MANY = 2_500_000  # messages: about a second; with more, only FEW_SIZES are simulated
VERY_MANY = 10_000_000  # with more, only the largest
COPIED = 1 << 30  # bytes that all ranks together may copy, for algorithms that may copy the whole vector

BLOCKS = ("reduce_scatter", "allgather", "alltoall", "gather", "scatter")
# In the simulation without payload, the memory that these touch does not grow with the vector.
BARE = {
    ("allreduce", "ring"),
    ("allreduce", "tree"),
    ("allreduce", "recursive_doubling"),
    ("allreduce", "halving_doubling"),
    ("allreduce", "double_tree"),
    ("reduce", "tree"),
    ("reduce", "halving_doubling"),
    ("reduce", "double_tree"),
    ("reduce_scatter", "ring"),
    ("allgather", "ring"),
    ("allgather", "recursive_doubling"),
    ("broadcast", "ring"),
    ("broadcast", "tree"),
    ("broadcast", "halving_doubling"),
    ("broadcast", "double_tree"),
    ("alltoall", "ring"),
    ("gather", "tree"),
    ("scatter", "tree"),
    ("scan", "recursive_doubling"),
}


@dataclass
class Scenario:
    """A network, the numbers of ranks that are simulated on it, and the collectives."""

    name: str
    title: str
    ranks: tuple
    sizes: tuple
    collectives: tuple = ()  # all if empty
    ranks_per_host: int = 1
    inside: tuple = (200e-9, 10e9, 100e-9)  # latency, bandwidth, overhead
    between: tuple = (1.5e-6, 12.5e9, 500e-9)
    uplink: float = 0
    reduction_rate: float = 10e9
    thin: bool = False  # few sizes if there are many messages

    def flags(self):
        """For hvd-scaling."""
        numbers = {"--inside": self.inside, "--between": self.between}
        words = [f"{flag}={','.join(map(repr, values))}" for flag, values in numbers.items()]
        words += [f"--ranks-per-host={self.ranks_per_host}", f"--uplink={self.uplink!r}"]
        return [*words, f"--reduction-rate={self.reduction_rate!r}"]

    def link(self):
        """The link that formulas take; None if hosts have several ranks."""
        if self.ranks_per_host != 1:
            return None
        latency, bandwidth, overhead = self.between
        return Link(latency, overhead, 1 / bandwidth, 1 / self.reduction_rate)

    def described(self):
        def level(values):
            latency, bandwidth, overhead = values
            return f"latency {latency * 1e6:g} µs, overhead {overhead * 1e6:g} µs, {bandwidth / 1e9:g} GB/s"

        between = f"between hosts {level(self.between)}"
        reduction = f"reduction {self.reduction_rate / 1e9:g} GB/s"
        if self.ranks_per_host == 1:
            return f"one rank a host; {between}; {reduction}"
        uplink = f", all ranks of a host together {self.uplink / 1e9:g} GB/s" if self.uplink else ""
        return f"{self.ranks_per_host} ranks a host; inside {level(self.inside)}; {between}{uplink}; {reduction}"


def scenarios(ranks=None, sizes=None, collectives=(), quick=False):
    thin = not sizes and not quick
    ranks = ranks or (QUICK_RANKS if quick else RANKS)
    sizes = sizes or (QUICK_SIZES if quick else SIZES)
    hosts = tuple(p for p in ranks if p % PER_HOST == 0 and PER_HOST < p <= MOST_HOST_RANKS)
    flat = Scenario("flat", "One rank a host", ranks, sizes, tuple(collectives), thin=thin)
    wanted = tuple(name for name in HOST_COLLECTIVES if not collectives or name in collectives)
    shared = Scenario("hosts", f"{PER_HOST} ranks a host", hosts, sizes, wanted, PER_HOST, uplink=12.5e9, thin=thin)
    return [flat, shared] if hosts and wanted else [flat]


def engine_scenarios(ranks=None, quick=False):
    """The networks for the engine."""
    ranks = ranks or (ENGINE_QUICK_RANKS if quick else ENGINE_RANKS)
    hosts = tuple(p for p in ranks if p % PER_HOST == 0 and p > PER_HOST)
    flat = Scenario("flat", "One rank a host", ranks, (ENGINE_BYTES,))
    shared = Scenario("hosts", f"{PER_HOST} ranks a host", hosts, (ENGINE_BYTES,), (), PER_HOST, uplink=12.5e9)
    return [flat, shared] if hosts else [flat]


def engine_cases(scenario):
    """Lines for hvd-scaling: engine, tensors, ranks, bytes."""
    return [("engine", ENGINE_TENSORS, p, size) for p in scenario.ranks for size in scenario.sizes]


def messages(collective, algorithm, p, size):
    """About how many messages a case has; 0 if not known, as if it had few."""
    logarithm = math.ceil(math.log2(p))
    if algorithm == "ring":
        if collective == "broadcast":
            return p * math.ceil(size / RING_CHUNK)
        each = math.ceil(size / p / RING_CHUNK)
        return p * (p - 1) * {"allreduce": each + 1, "reduce_scatter": each}.get(collective, 1)
    if algorithm in ("tree", "double_tree") and collective not in BLOCKS:
        return p * math.ceil(size / TREE_CHUNK) * (2 if collective == "allreduce" else 1)
    return 2 * p * logarithm if algorithm in ("recursive_doubling", "halving_doubling", "bruck") else 0


def cases(scenario, known):
    """(collective, algorithm, ranks, bytes) of a scenario, of all algorithms that hvd-scaling has."""
    found = []
    for collective, algorithms in known.items():
        if scenario.collectives and collective not in scenario.collectives:
            continue
        for algorithm in algorithms:
            if algorithm == "hierarchical" and scenario.ranks_per_host == 1:
                continue
            for p in scenario.ranks:
                for size in scenario.sizes:
                    if collective in BLOCKS and size < 4 * p:  # less than an element for each rank
                        continue
                    number = messages(collective, algorithm, p, size) if scenario.thin else 0
                    few = FEW_SIZES[-1:] if number > VERY_MANY else FEW_SIZES
                    if number > MANY and size not in few:
                        continue
                    if (collective, algorithm) not in BARE and p * size > COPIED:
                        continue
                    found.append((collective, algorithm, p, size))
    return found
