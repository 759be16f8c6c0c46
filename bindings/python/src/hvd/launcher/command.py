"""hvd/launcher/command.py: the programs of a job, and the search for them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvd.launcher.errors import LaunchError


@dataclass
class Program:
    """A process to start. `env` extends the job's environment. If stdin is None, it is /dev/null.

    `index`: the number for its output and its end, by default its position among the programs. `alone`: it forwards
    signals itself, so they are sent to it and not to its process group. `window`: the most bytes of input in flight;
    Job.took counts bytes that have arrived.
    """

    argv: Sequence[str]
    executable: str
    env: Mapping[str, str] = field(default_factory=dict)
    cpus: Sequence[int] | None = None
    stdin: int | None = None
    pass_fds: Sequence[int] = ()
    index: int | None = None
    alone: bool = False
    window: int | None = None

    def order(self, fds: Sequence[int]) -> dict[str, Any]:
        """The entry for the program in the guard's order. `fds` are its standard streams."""
        return {
            "argv": list(self.argv),
            "executable": self.executable,
            "env": dict(self.env),
            "cpus": list(self.cpus) if self.cpus else None,
            "fds": list(fds),
            "pass_fds": list(self.pass_fds),
            "alone": self.alone,
        }


def find_program(command: Sequence[str | os.PathLike[str]], env: Mapping[str, str]) -> tuple[list[str], str]:
    """The words of a command and the path of its program. Raises LaunchError if it cannot be run as given."""
    if isinstance(command, (str, bytes)) or not command:
        raise LaunchError(f"the command is {command!r}; it must be a list of words, the program first")
    words = [os.fspath(word) for word in command]
    for word in words:
        if not isinstance(word, str) or "\0" in word:
            raise LaunchError(f"{word!r} cannot be a word of a command")
    program = words[0]
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        path = Path(program)
        if path.is_dir():
            raise LaunchError(f"{program} is a directory, not a program")
        if path.is_file():
            if path.suffix == ".py":
                raise LaunchError(f"{program} is not executable; put python before it: python {program}")
            how = f"./{program}" if "/" not in program and os.access(path, os.X_OK) else f"chmod +x {program}"
            raise LaunchError(f"{program} is a file here but not a command; try {how}")
        where = "there is no such file" if "/" in program else "it is not in PATH"
        raise LaunchError(f"{program} was not found: {where}")
    if Path(found).name.startswith("python"):
        script = next((word for word in words[1:] if not word.startswith("-")), None)
        options = words[1 : words.index(script)] if script is not None else words[1:]
        if script and script.endswith(".py") and not options and not Path(script).exists():
            raise LaunchError(f"{script} was not found: there is no such file in {os.getcwd()}")
    return words, found
