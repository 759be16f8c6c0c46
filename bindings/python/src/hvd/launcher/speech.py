"""hvd/launcher/speech.py: messages of hvdrun for the user, on standard error; in colours on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from hvd.launcher.local import SHOWN


class Speech:
    """Prints sentences with the program's name before them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._console: Any = None
        if sys.stderr.isatty():
            with contextlib.suppress(ImportError):
                from rich.console import Console

                self._console = Console(stderr=True, highlight=False, soft_wrap=True)

    def say(self, sentence: str, style: str = "") -> None:
        """Prints one sentence."""
        if self._console:
            from rich.text import Text

            self._console.print(Text.assemble((f"{self.name}: ", "bold"), (sentence, style)))
        else:
            print(f"{self.name}: {sentence}", file=sys.stderr, flush=True)

    def warn(self, sentence: str) -> None:
        """Prints a warning."""
        self.say(sentence, "yellow")

    def error(self, sentence: str, lines: Sequence[str] = (), title: str = "its last lines") -> None:
        """Prints an error, and the lines that were written before it."""
        shown = list(lines)[-SHOWN:]
        if not shown:
            self.say(sentence, "bold red")
        elif self._console:
            from rich.panel import Panel
            from rich.text import Text

            self.say(sentence, "bold red")
            self._console.print(Panel(Text("\n".join(shown)), title=title, title_align="left", border_style="red"))
        else:
            self.say(f"{sentence}; {title}:")
            print("".join(f"  {line}\n" for line in shown), end="", file=sys.stderr, flush=True)

    def waiting(self, sentence: str) -> AbstractContextManager[Any]:
        """Shows on a terminal that hvdrun waits for something."""
        return self._console.status(sentence) if self._console else contextlib.nullcontext()
