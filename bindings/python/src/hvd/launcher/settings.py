"""hvd/launcher/settings.py: horovodrun's settings for ranks: flag, variable, and key in a configuration file.

One table defines the command-line options, the keys of the YAML file and the ranks' variables; another one lists the
options without effect.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable


def whole(text: str, least: int = 0, most: int = 10**15) -> int:
    """A whole number in these limits."""
    value = int(text) if re.fullmatch("[0-9]{1,16}", text) else -1
    if not least <= value <= most:
        upper = "" if value <= most and len(text) <= 16 else f" to {most}"
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a whole number from {least}{upper}")
    return value


def positive(text: str) -> int:
    """A whole number from 1."""
    return whole(text, 1)


def number(text: str) -> float:
    """A number from 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return value


def share(text: str) -> float:
    """A number from 0 to 1."""
    value = number(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 0 to 1")
    return value


def truth(text: str) -> bool:
    """A truth value in a file. The command line has --x and --no-x."""
    if text.lower() not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return text.lower() in ("true", "1", "yes", "on")


def level(text: str) -> str:
    """The lowest level that ranks log."""
    levels = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")
    if text.upper() not in levels:
        raise argparse.ArgumentTypeError(f"{text!r} is not a level; allowed: {', '.join(levels)}")
    return text.upper()


def core_list(text: str) -> str:
    """One CPU for each local rank."""
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of CPUs, one for each rank of a host, such as 0,4")
    return text


_META: dict[Callable[[str], Any], str] = {
    whole: "N", positive: "N", number: "X", share: "X", core_list: "CPUS", level: "LEVEL", str: "FILE",
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One setting."""

    flag: str
    kind: Callable[[str], Any]
    help: str
    variable: str = ""
    key: str = ""  # section.name in the YAML file
    encode: Callable[[Any], str] = str

    @property
    def name(self) -> str:
        """Its attribute in the parsed options."""
        return self.flag.replace("-", "_")


@dataclass(frozen=True)
class Idle:
    """Why an option of hvdrun has no effect, and when: always, on one host, or with some values. `argument`: its name
    in hvd.run, if it has another one there."""

    why: str
    when: str = "always"
    argument: str = ""


_HIERARCHY = Idle("all collectives across hosts are hierarchical")
_HERE = Idle("all ranks are on this host", "on one host")
_FIXED = Idle("it is for elastic jobs, which a minimum or a maximum of ranks asks for", "with a fixed number of ranks")
# Options that are accepted without effect, with a message. docs/python.md has the same table.
IDLE = {
    "hierarchical-allreduce": _HIERARCHY,
    "hierarchical-allgather": _HIERARCHY,
    "torus-allreduce": _HIERARCHY,
    "autotune-gaussian-process-noise": Idle("hvd's tuner has no Gaussian process"),
    "mpi-threads-disable": Idle("hvd requests the thread level that it needs"),
    "num-nccl-streams": Idle("hvd creates the streams that it needs"),
    "gloo-timeout-seconds": Idle("Gloo is not used; HVD_TIMEOUT limits the wait for another rank"),
    "log-with-timestamp": Idle("ranks log without a time; use --prefix-output-with-timestamp"),
    "elastic-timeout": _FIXED,
    "reset-limit": _FIXED,
    "blacklist-cooldown-range": Idle(_FIXED.why, _FIXED.when, "cooldown_range"),
    "disable-cache": Idle("nothing is cached between starts"),
    "gloo": Idle("ranks of one host talk through shared memory", "on one host", "use_gloo"),
    "jsrun": Idle("ranks on several hosts are started by MPICH's mpiexec, or by ssh"),
    "ssh-port": _HERE,
    "ssh-identity-file": _HERE,
    "network-interfaces": _HERE,
    "network-interface": _HERE,
    "mpi-args": _HERE,
    "slots-per-host": Idle("it is for the hosts that a discovery script prints", "without a script", "slots"),
    "binding-args": Idle("on one host it must be -bind-to none, core or core:N", "with other values"),
    "thread-affinity": Idle("it must have one CPU for each rank of a host, with commas between them", "with fewer CPUs"),
}


def _flag(value: bool) -> str:
    return "1" if value else "0"


def _not(value: bool) -> str:
    return _flag(not value)


def _g(value: float) -> str:
    return f"{value:g}"


# fmt: off
GROUPS: dict[str, list[Setting]] = {
    "tuning": [
        Setting(
            "fusion-threshold-mb", whole, "fuse tensors up to this many MB; 0: do not fuse (default 128)",
            "HOROVOD_FUSION_THRESHOLD", "params.fusion_threshold_mb", encode=lambda mb: str(mb << 20),
        ),
        Setting(
            "cycle-time-ms", number, "ms between rounds of agreement; a longer time fuses more tensors (default 0)",
            "HOROVOD_CYCLE_TIME", "params.cycle_time_ms", encode=_g,
        ),
        Setting(
            "cache-capacity", whole, "signatures of tensors to cache (default 1024)",
            "HOROVOD_CACHE_CAPACITY", "params.cache_capacity",
        ),
        Setting(
            "hierarchical-allreduce", truth, "first within hosts, then between them",
            "HOROVOD_HIERARCHICAL_ALLREDUCE", "params.hierarchical_allreduce", _flag,
        ),
        Setting(
            "hierarchical-allgather", truth, "first within hosts, then between them",
            "HOROVOD_HIERARCHICAL_ALLGATHER", "params.hierarchical_allgather", _flag,
        ),
        Setting(
            "torus-allreduce", truth, "first within hosts, then between them",
            "HOROVOD_TORUS_ALLREDUCE", "params.torus_allreduce", _flag,
        ),
    ],
    "autotuning": [
        Setting("autotune", truth, "tune while training", "HOROVOD_AUTOTUNE", "autotune.enabled", encode=_flag),
        Setting("autotune-log-file", str, "a CSV file of tried values", "HOROVOD_AUTOTUNE_LOG", "autotune.log_file"),
        Setting(
            "autotune-warmup-samples", whole, "samples to discard at the start (default 3)",
            "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "autotune.warmup_samples",
        ),
        Setting(
            "autotune-steps-per-sample", whole, "batches in a sample (default 10)",
            "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "autotune.steps_per_sample",
        ),
        Setting(
            "autotune-bayes-opt-max-samples", whole, "maximum number of samples (default 20)",
            "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "autotune.bayes_opt_max_samples",
        ),
        Setting(
            "autotune-gaussian-process-noise", share, "of Horovod's model", "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
            "autotune.gaussian_process_noise", _g,
        ),
    ],
    "timeline": [
        Setting("timeline-filename", str, "timeline in Chrome's format", "HOROVOD_TIMELINE", "timeline.filename"),
        Setting(
            "timeline-mark-cycles", truth, "mark each cycle of the engine in it", "HOROVOD_TIMELINE_MARK_CYCLES",
            "timeline.mark_cycles", encode=_flag,
        ),
        Setting(
            "timeline-live", truth,
            "show it on a page while the job runs, and print the address. Without --timeline-filename the file is "
            "in hvd-timelines/, or for several hosts in the current folder, which all of them must have",
            "HVD_TIMELINE_LIVE", "timeline.live", encode=_flag,
        ),
    ],
    "stalled tensors": [
        Setting(
            "stall-check", truth, "warn of tensors that some ranks have not submitted", "HOROVOD_STALL_CHECK_DISABLE",
            "stall_check.enabled", encode=_not,
        ),
        Setting(
            "stall-check-warning-time-seconds", whole, "seconds until the warning (default 60)",
            "HOROVOD_STALL_CHECK_TIME_SECONDS", "stall_check.warning_time_seconds",
        ),
        Setting(
            "stall-check-shutdown-time-seconds", whole, "seconds until the job is ended; 0: never (the default)",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "stall_check.shutdown_time_seconds",
        ),
    ],
    "libraries": [
        Setting(
            "mpi-threads-disable", truth, "MPI without threads", "HOROVOD_MPI_THREADS_DISABLE",
            "library_options.mpi_threads_disable", _flag,
        ),
        Setting(
            "num-nccl-streams", whole, "of each GPU", "HOROVOD_NUM_NCCL_STREAMS", "library_options.num_nccl_streams",
        ),
        Setting(
            "thread-affinity", core_list, "a CPU for the communication of each local rank, such as 0,4",
            "HOROVOD_THREAD_AFFINITY", "library_options.thread_affinity",
        ),
        Setting(
            "gloo-timeout-seconds", whole, "of Gloo", "HOROVOD_GLOO_TIMEOUT_SECONDS",
            "library_options.gloo_timeout_seconds",
        ),
    ],
    "logging": [
        Setting("log-level", level, "TRACE to FATAL (default WARNING)", "HOROVOD_LOG_LEVEL", "logging.level"),
        Setting("log-with-timestamp", truth, "times in the log", "", "logging.with_timestamp", _flag),
    ],
    "elastic jobs": [
        Setting("min-num-proc", positive, "start failed ranks again, and go on with at least this many (default -np)"),
        Setting("max-num-proc", positive, "the same, with up to this many ranks (default -np)"),
        Setting("slots-per-host", whole, "of discovered hosts"),
        Setting("elastic-timeout", whole, "seconds in which enough ranks must have come (default 600)", "HOROVOD_ELASTIC_TIMEOUT"),
        Setting("reset-limit", whole, "how often the ranks may change (default: no limit)"),
    ],
}
# fmt: on
ALL = {setting.name: setting for group in GROUPS.values() for setting in group}
ALIASES = {"min-num-proc": ["--min-np"], "max-num-proc": ["--max-np"]}
NEGATIVE = {"log-with-timestamp": ["--log-without-timestamp", "--log-hide-timestamp"]}
POSITIVE = {"log-with-timestamp": ["--no-log-hide-timestamp"]}


def help_of(flag: str, text: str = "") -> str:
    """The help of an option: why it has no effect, or the given text."""
    found = IDLE.get(flag)
    return f"accepted, without effect: {found.why}" if found and found.when == "always" else text


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the options of all settings. None means not given."""
    for title, group in GROUPS.items():
        section = parser.add_argument_group(title)
        for setting in group:
            text = help_of(setting.flag, setting.help)
            if setting.kind is truth:
                yes = [f"--{setting.flag}", *POSITIVE.get(setting.flag, [])]
                no = NEGATIVE.get(setting.flag, [f"--no-{setting.flag}"])
                section.add_argument(*yes, dest=setting.name, action="store_true", default=None, help=text)
                section.add_argument(*no, dest=setting.name, action="store_false", default=None, help="the opposite")
            else:
                names = [f"--{setting.flag}", *ALIASES.get(setting.flag, [])]
                section.add_argument(
                    *names, dest=setting.name, type=setting.kind, metavar=_META[setting.kind], help=text
                )


def variables(options: Mapping[str, Any]) -> dict[str, str]:
    """The ranks' environment variables for the given settings."""
    said = {name: options.get(name) for name in ALL}
    return {
        ALL[name].variable: ALL[name].encode(value)
        for name, value in said.items()
        if value is not None and ALL[name].variable
    }


def seconds_in(env: Mapping[str, str], variable: str, otherwise: float) -> float:
    """The number in a variable, or `otherwise` if it is not set."""
    text = env.get(variable)
    try:
        return float(text) if text else otherwise
    except ValueError:
        raise ValueError(f"{variable}={text!r} is not a number of seconds") from None


def start_timeout() -> float:
    """HOROVOD_START_TIMEOUT, or 30 seconds."""
    return seconds_in(os.environ, "HOROVOD_START_TIMEOUT", 30.0)


def warnings(options: Mapping[str, Any], *when: str) -> list[str]:
    """A sentence for each given option of hvdrun without effect in these cases."""
    idle = [flag for flag, found in IDLE.items() if found.when in when]
    given = [flag for flag in idle if options.get(flag.replace("-", "_")) is not None]
    return [f"--{flag} has no effect here: {IDLE[flag].why}" for flag in given]


def read_file(path: str) -> dict[str, Any]:
    """The settings in a YAML file, by option name. Raises ValueError with file and key."""
    import yaml  # type: ignore[import-untyped,unused-ignore]

    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except OSError as error:
        raise ValueError(f"--config-file {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:  # also for values such as 2001-99-99
        raise ValueError(f"--config-file {path} is not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise ValueError(f"--config-file {path} must have sections, such as `params:`; it is a {kind}")
    keys = {setting.key: setting for setting in ALL.values() if setting.key}
    found: dict[str, Any] = {}
    for section, values in content.items():
        if section == "controller" and not isinstance(values, (dict, list, set)):
            found["controller"] = str(values).lower()
            continue
        if not isinstance(values, dict):
            raise ValueError(f"--config-file {path}: section {section} has no keys")
        for key, value in values.items():
            place = f"{section}.{str(key).replace('-', '_')}"
            if place == "logging.hide_timestamp":
                place, value = "logging.with_timestamp", not value
            setting = keys.get(place)
            if setting is None:
                known = ", ".join(sorted(name for name in keys if name.startswith(f"{section}.")))
                sections = ", ".join(sorted({name.partition(".")[0] for name in keys} | {"controller"}))
                raise ValueError(f"--config-file {path}: {place} is unknown; allowed: {known or sections}")
            if value is None:
                continue
            if isinstance(value, (dict, list, set)):  # aliases can make their texts arbitrarily long
                raise ValueError(f"--config-file {path}: {place} has several values, but takes one")
            try:
                found[setting.name] = setting.kind(str(value))
            except argparse.ArgumentTypeError as error:
                raise ValueError(f"--config-file {path}: {place}: {error}") from None
    return found
