"""Where the time of tools/test goes: seconds of CPU compiled, seconds of CPU tested, and seconds waited, by suite."""

import json
import re
import time
from collections import defaultdict
from dataclasses import asdict, dataclass

CPU = re.compile(r"^HVD_CPU ([\d.]+) ([\d.]+)$", re.MULTILINE)
# For `meson test --wrapper`: the time of the program with all its ranks, in the last line that it prints.
WRAPPER = """bash -c 'TIMEFORMAT="HVD_CPU %U %S"; time "$@"' test"""


@dataclass
class Row:
    compiled: float = 0.0  # seconds of CPU
    tested: float = 0.0  # seconds of CPU
    waited: float = 0.0  # seconds in which a test took no CPU, its ranks' neither
    cases: int = 0


class Times:
    """Rows by part and suite; those of `python` are folders of its tests."""

    def __init__(self):
        self.rows = defaultdict(Row)

    def test(self, suite, seconds, cpu, cases=1):
        row = self.rows[suite]
        cpu = max(0.0, cpu)  # processes that outlive those that started them are not in it, and may make it negative
        row.tested += cpu
        row.waited += max(0.0, seconds - cpu)
        row.cases += cases

    def compiled(self, part, folder, cpu, since):
        """Shares `cpu`, what ninja and its compilers took, as its log shares the seconds that have passed."""
        seconds = defaultdict(float)
        log = folder / ".ninja_log"
        for line in log.read_text().splitlines()[1:] if log.exists() else ():
            start, end, stamp, output, _ = line.split("\t")
            # The log keeps what former runs built. An output that a command did not touch has an old stamp, or none.
            if int(stamp) / 1e9 >= since:
                seconds[self.suite_of(part, output)] += (int(end) - int(start)) / 1000
        total = sum(seconds.values()) or 1.0  # copies alone take no time
        for suite, share in seconds.items():
            self.rows[suite].compiled += cpu * share / total

    @staticmethod
    def suite_of(part, output):
        """tests/test_engine.p/x.o and tests/test_engine are the suite's own; examples, bench and the rest are a row each."""
        program = re.match(r"tests/test_(\w+)(\.p/|$)", output)
        return f"{part}: {program[1] if program else output.split('.p/')[0].rpartition('/')[0] or output}"

    def table(self):
        """Lines, the costliest first."""
        rows = sorted(self.rows.items(), key=lambda item: -(item[1].compiled + item[1].tested + item[1].waited))
        total = Row(*(sum(getattr(row, name) for row in self.rows.values()) for name in Row.__annotations__))
        width = max((len(name) for name, _ in rows), default=0)
        yield f"{'':{width}}  compiled   tested   waited   cases"
        for name, row in [*rows, ("all", total)]:
            yield f"{name:{width}}  {row.compiled:6.0f} s {row.tested:6.0f} s {row.waited:6.0f} s  {row.cases:6}"

    def write(self, path, command, seconds):
        path.write_text(
            json.dumps(
                {
                    "command": command,
                    "date": time.strftime("%Y-%m-%d %H:%M"),
                    "seconds": round(seconds),
                    "suites": {name: {k: round(v, 1) for k, v in asdict(row).items()} for name, row in self.rows.items()},
                },
                indent=1,
            )
            + "\n"
        )
