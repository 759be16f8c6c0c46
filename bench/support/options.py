"""Command lines that report mistakes by one sentence and exit code 2."""

import argparse
import os
import re


class Refused(Exception):
    """Bad input: one sentence for the user, exit code 2."""


class Parser(argparse.ArgumentParser):
    """A parser that reports mistakes in one sentence. `help_by`: the command that prints help, if not PROG --help."""

    def __init__(self, prog, description, help_by=None):
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=prog, description=description, formatter_class=form, allow_abbrev=False)
        self.help_by = help_by or f"{prog} --help"

    def error(self, message):
        raise Refused(f"{message}; {self.help_by} lists all options")


def whole(least, most):
    """A function that reads a whole number within limits, for `type=` of an argument."""

    def read(text):
        if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from {least} to {most}")
        return int(text)

    return read


def can_write(folder):
    return folder.is_dir() and os.access(folder, os.W_OK)
