"""hvd/launcher/timeline.py: --timeline-live, the page of a job's timeline while it runs."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import shlex
import shutil
import time
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Callable

from hvd.launcher.collection import Collection
from hvd.timeline.live import Live

FOLDER = "hvd-timelines"  # below the current folder, if no file is named
LIVE = "HVD_TIMELINE_LIVE"
FILE = "HOROVOD_TIMELINE"
ELSEWHERE = (
    "Ranks on hosts that do not share the folder of the timeline are shown when the job has ended, or never if it is elastic. "
    "Until then the reports of the stall check include them."
)
ELASTIC = (
    "the timeline of an elastic job has the ranks of this host and of those that share its folder; ranks of other hosts write "
    "to a file of the same name there: see hvd-timeline --merge"
)


def wanted(environ: MutableMapping[str, str]) -> bool:
    """Whether the environment requests a page. Removes the request, so that ranks do not start jobs with pages."""
    text = environ.pop(LIVE, "")
    if text not in ("", "0", "1"):
        raise ValueError(f"{LIVE}={text!r} must be 1 (the job's timeline is shown on a page) or 0")
    return text == "1"


@contextlib.contextmanager
def page(
    environ: MutableMapping[str, str], several: bool, say: Callable[[str], None], show: Callable[[str], None] | None = None,
    program: str = "", suffix: str = "",
) -> Iterator[Collection | None]:
    """Serves the page of a job that gets `environ`, and sets FILE in it if it is not set. At the end, prints how to
    view the page later. `several`: the job has several hosts; then yields a collection for the events of hosts that
    write other files. `show(address)` shows the address, by default with `say`. `program` is the page's title. `suffix` distinguishes a file without a
    given name from others of this process.

    ValueError if there can be no page.
    """
    if importlib.util.find_spec("tornado") is None:
        raise ValueError("--timeline-live needs tornado, which serves the page: pip install 'hvd[page]'")
    file = environ.get(FILE, "")
    if file == "DYNAMIC":
        raise ValueError(f"--timeline-live shows one file from the start: {FILE}=DYNAMIC does not name one")
    made = None
    if not file:
        name = time.strftime("%Y-%m-%dT%H-%M-%S") + f"-{os.getpid()}{suffix}.json"
        # Other hosts may not have the folder, and their ranks write to an existing one.
        made = None if several else _folder()
        file = os.path.abspath(f"hvd-timeline-{name}" if made is None else made / name)
    environ[FILE] = file
    collection = Collection(file) if several else None
    try:
        live = Live(file, environ, note=ELSEWHERE if several else "", program=program)
    except ValueError:
        _remove_empty(made)
        raise
    try:
        (show or (lambda address: say(f"timeline: {address}")))(live.address)
        yield collection
    finally:
        if collection is not None:
            collection.finish(say)
        failure = live.failure()
        live.finish()
        if failure:
            say(f"the server of the timeline's page has failed: {failure}")
        if Path(file).exists():
            stays = f"the page stays for {_span(live.stays)}, and while somebody looks at it; " if not failure else ""
            say(f"{stays}later: {command()} {shlex.quote(shown(file))}")
        else:
            _remove_empty(made)
            say("there is no timeline: no rank of this host has called init()")


def title(command: Sequence[str]) -> str:
    """The name of a job: its script or module, or else its program."""
    name = os.path.basename(command[0])
    if name.startswith("python"):
        name = dict(zip(command, command[1:])).get("-m", name)
    return os.path.basename(next((word for word in command if word.endswith(".py")), name))


def _folder() -> Path:
    """The folder for files without a given name, created if missing."""
    folder = Path(FOLDER)
    try:
        folder.mkdir(exist_ok=True)
        why = "" if os.access(folder, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)
    except FileExistsError:
        why = "a file has that name"
    except OSError as error:
        why = str(error.strerror)
    if why:
        remedy = f"name a file with --timeline-filename or {FILE}"
        raise ValueError(f"--timeline-live: {os.path.abspath(folder)} cannot be a folder for timelines: {why}; {remedy}")
    return folder


def _remove_empty(folder: Path | None) -> None:
    if folder is not None:
        with contextlib.suppress(OSError):  # other jobs' timelines may be in it
            folder.rmdir()


def _span(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 60 else f"{round(seconds / 60, 1):g} min"


def shown(file: str) -> str:
    """A path relative to the current folder, if the file is below it."""
    path = os.path.relpath(file)
    return os.path.abspath(file) if path.startswith(os.pardir) else path


def command() -> str:
    """The command line that runs hvd-timeline here."""
    return "hvd-timeline" if shutil.which("hvd-timeline") else "python -m hvd.timeline.main"
