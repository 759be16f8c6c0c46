"""The faults that run.py plants, and the test that must find each: one for every layer, as small as real ones are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True)
class Program:
    """tests/NAME.cpp, compiled alone; `cases` is a pattern of doctest."""

    name: str
    cases: str = "*"
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pytest:
    """Tests in a file of bindings/python/tests, chosen as by `pytest -k`."""

    name: str
    cases: str


@dataclass(frozen=True)
class Script:
    """A test that is a script and takes the folder of the sources."""

    name: str


Test = Union[Program, Pytest, Script]


@dataclass(frozen=True)
class Fault:
    name: str
    breaks: str
    test: Test
    file: str
    old: str  # occurs once in the file
    new: str


_MESSAGES = Program("shared_memory/messages")
_RUNNER = Pytest("horovod_runner/test_runner_ranks.py", "test_an_exception_comes_back")

FAULTS = (
    Fault(
        "upward_include",
        "errors depend on the engine, the layer on top of all",
        Script("layering.py"),
        "include/hvd/error.hpp",
        "#include <hvd/version.hpp>\n",
        "#include <hvd/engine.hpp>\n#include <hvd/version.hpp>\n",
    ),
    Fault(
        "wrong_op",
        "the maximum of bfloat16 is the minimum",
        Program("op"),
        "include/hvd/op/kernels.hpp",
        "return vectorised<bfloat16_format, Combine>();",
        "return vectorised<bfloat16_format, std::conditional_t<std::is_same_v<Combine, maximum>, minimum, Combine>>();",
    ),
    Fault(
        "missing_acquire",
        "data may be read before the word that says that it is there",
        Program("transport/thread", "*", ("-fsanitize=thread", "-O1", "-g1")),
        "include/hvd/shared_memory/words.hpp",
        "const std::uint64_t value = w.load(std::memory_order_acquire);",
        "const std::uint64_t value = w.load(std::memory_order_relaxed);",
    ),
    Fault(
        "lost_wake_up",
        "a rank that sleeps is not woken by the store that it waits for",
        Program("shared_memory/peer_memory"),
        "include/hvd/shared_memory/words.hpp",
        "    futex_wake_all(doorbell.rings);\n",
        "",
    ),
    Fault(
        "full_ring",
        "a sender overwrites a fragment that is not taken yet",
        _MESSAGES,
        "include/hvd/shared_memory/messages.hpp",
        "channels_.m.sent(to_) - taken < slots_per_channel",
        "channels_.m.sent(to_) - taken <= slots_per_channel",
    ),
    Fault(
        "wrong_rank",
        "the error for a message of another length names its receiver as the sender",
        _MESSAGES,
        "include/hvd/shared_memory/messages.hpp",
        '" bytes from rank ", from_,',
        '" bytes from rank ", m.rank(),',
    ),
    Fault(
        "beyond_the_ring",
        "the last chunk of an operation is staged behind the ring's end",
        Program("shared_memory/staging"),
        "include/hvd/shared_memory/staging.hpp",
        "&& end * p.room <= bytes_ ?",
        "&& (end - 1) * p.room <= bytes_ ?",
    ),
    Fault(
        "leaked_descriptor",
        "a segment that is gone keeps its descriptor, and its locks with it",
        Program("shared_memory/segment"),
        "include/hvd/shared_memory/fork_guard.hpp",
        "    *link = next_;\n    if (fd_ >= 0) ::close(fd_);\n",
        "    *link = next_;\n",
    ),
    Fault(
        "refused_option",
        "a time limit below zero is taken",
        Program("policy"),
        "include/hvd/config/parse.hpp",
        "if (lo <= seconds && seconds <= hi)",
        "if (seconds <= hi)",
    ),
    Fault(
        "swapped_root",
        "a tree broadcasts what the rank opposite the root has",
        Program("broadcast"),
        "include/hvd/algorithm/tree.hpp",
        "const bool at_root = t.rank() == c.root;\n    spread(",
        "const bool at_root = t.rank() == t.size() - 1 - c.root;\n    spread(",
    ),
    Fault(
        "row_of_the_timeline",
        "all ranks write their events into the row of rank 0",
        Program("timeline", "all ranks write one file*"),
        "include/hvd/timeline/text.hpp",
        '",\\"tid\\":") += rank_;',
        '",\\"tid\\":") += "0";',
    ),
    Fault(
        "fusion_offset",
        "of a tensor that does not fit into the buffer the wrong part is sent",
        Program("fusion", "allreduce: long tensors*"),
        "include/hvd/fusion/pack.hpp",
        "f(*p, begin - p->start, begin, end - begin);",
        "f(*p, begin - first, begin, end - begin);",
    ),
    Fault(
        "signal_not_passed_on",
        "an interrupt reaches the ranks as another signal",
        Pytest("launcher/test_launcher_local.py", "test_an_interrupt_is_passed_on"),
        "bindings/python/src/hvd/launcher/job.py",
        "self.stop(number, FAREWELL)",
        "self.stop(signal.SIGTERM, FAREWELL)",
    ),
    Fault(
        "consumed_error",
        "HorovodRunner drops the exception of every rank but the first",
        _RUNNER,
        "bindings/python/src/hvd/remote/results.py",
        "    if raised:\n",
        "    if 0 in raised:\n",
    ),
    Fault(
        "wrong_dtype",
        "float16 of PyTorch is reduced as bfloat16",
        Pytest("torch/test_torch_ops.py", "test_allreduce and 2_ranks and float16 and not bfloat16"),
        "bindings/python/src/hvd/torch/adapter.py",
        "            found[dtype] = number\n",
        '            found[dtype] = _core.dtypes["bfloat16"] if name == "float16" else number\n',
    ),
    Fault(
        "wrong_average",
        "an optimizer divides gradients before the reduction and does not multiply them after it",
        Pytest("torch/test_torch_optimizer.py", "test_each_variant and 2_ranks and predivide and not groups"),
        "bindings/python/src/hvd/torch/reducer.py",
        "return Reduction(op, 1.0 / factor, factor, wire)",
        "return Reduction(op, 1.0 / factor, 1.0, wire)",
    ),
)
