"""hvd/command_line.py: error messages of hvd's commands for invalid options."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser whose errors suggest the option that was probably meant."""

    hint = ""  # added to the message for an unknown option

    def error(self, message: str) -> NoReturn:
        """Prints one sentence and where to read more. Exits with code 2."""
        unknown = re.match(r"unrecognized arguments: (\S+)", message)
        if unknown:
            word = unknown[1].partition("=")[0]
            known = [name for action in self._actions for name in action.option_strings]
            close = difflib.get_close_matches(word, known, 1, 0.5)
            message = f"{word} is not an option of {self.prog}" + (f" ({close[0]}?)" if close else "")
            message += self.hint
        self.exit(2, f"{self.prog}: {message}\n  {self.prog} --help lists all options\n")
