"""hvd/remote/pmi.py: answers requests of MPI processes to their launcher, by PMI-1 as in MPICH's "simple" client.

MPICH, Intel MPI and MVAPICH connect through it: each process stores its address under a key, and reads those of the
others after a barrier. A process talks to its launcher through an inherited socket. The launchers use their own
connections, so a job needs neither Hydra's processes nor their ports, which do not authenticate clients. The protocol
has lines of words, `cmd=put kvsname=N key=K value=V`; it is described as PMI-1.1 by the MPICH project.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_VALUE = 1024  # bytes
MOST_KEY = 64
MOST_NAME = 256
RANK_VARIABLES = ("PMI_FD", "PMI_RANK", "PMI_SIZE")

Answers = list[tuple[int, str]]  # a rank, and the line for it, with its newline


class Server:
    """Answers the ranks of one job. `hosts[rank]` numbers hosts from 0, in the order of their first ranks."""

    def __init__(self, hosts: Sequence[int], name: str = "hvd") -> None:
        self.size = len(hosts)
        self.aborted: tuple[int, int] | None = None  # the first rank that called MPI_Abort, and its exit code
        self.initialised: set[int] = set()
        self._name = name
        self._values = {"PMI_process_mapping": process_mapping(hosts)}
        self._waiting: set[int] = set()
        self._commands = {
            "init": self._init,
            "get_maxes": lambda *_: f"maxes kvsname_max={MOST_NAME} keylen_max={MOST_KEY} vallen_max={MOST_VALUE}",
            "get_appnum": lambda *_: "appnum appnum=0",
            "get_my_kvsname": lambda *_: f"my_kvsname kvsname={self._name}",
            "get_universe_size": lambda *_: f"universe_size size={self.size}",
            "put": self._put,
            "get": self._get,
            "finalize": self._finalize,
        }

    def answer(self, rank: int, line: str) -> Answers:
        """The lines to send in answer to a rank's line; none while other ranks are missing in a barrier."""
        words = _parsed(line)
        command = words.get("cmd", "")
        if command == "abort":
            code = words.get("exitcode", "1")
            self.aborted = self.aborted or (rank, int(code) if code.lstrip("-").isdigit() else 1)
            return []
        if command == "barrier_in":
            self._waiting.add(rank)
            if len(self._waiting) < self.size:
                return []
            self._waiting.clear()
            return [(each, "cmd=barrier_out rc=0\n") for each in range(self.size)]
        if command in self._commands:
            return [(rank, f"cmd={self._commands[command](rank, words)}\n")]
        # Such as spawn or publish_name, which a job does not need if all its ranks exist from the beginning.
        return [(rank, f"cmd={command}_result rc=-1 msg=not_supported_by_hvd\n")]

    def _init(self, rank: int, words: dict[str, str]) -> str:
        self.initialised.add(rank)
        fits = words.get("pmi_version") == "1"
        return f"response_to_init pmi_version=1 pmi_subversion=1 rc={0 if fits else -1}"

    def _put(self, _: int, words: dict[str, str]) -> str:
        key, value = words.get("key", ""), words.get("value", "")
        if not key or len(key) > MOST_KEY or len(value) > MOST_VALUE:
            return "put_result rc=-1 msg=invalid_key_or_value"
        if self._values.setdefault(key, value) != value:
            return f"put_result rc=-1 msg=duplicate_key_{key}"
        return "put_result rc=0 msg=success"

    def _get(self, _: int, words: dict[str, str]) -> str:
        key = words.get("key", "")
        if key not in self._values:
            return f"get_result rc=-1 msg=key_{key[:MOST_KEY]}_not_found value=unknown"
        return f"get_result rc=0 msg=success value={self._values[key]}"

    def _finalize(self, _rank: int, _: dict[str, str]) -> str:
        return "finalize_ack rc=0"


def _parsed(line: str) -> dict[str, str]:
    """The words of a line. `value` is the last one, and may contain blanks."""
    before, found, value = line.strip("\n").partition(" value=")
    words = dict(word.partition("=")[::2] for word in before.split() if "=" in word)
    return {**words, "value": value} if found else words


def process_mapping(hosts: Sequence[int]) -> str:
    """The placement of ranks in MPICH's format: consecutive blocks of (first host, hosts, ranks on each)."""
    blocks: list[list[int]] = []
    for host in hosts:
        if blocks and blocks[-1][0] == host:
            blocks[-1][1] += 1
        else:
            blocks.append([host, 1])
    return f"(vector,{','.join(f'({host},1,{count})' for host, count in blocks)})"
