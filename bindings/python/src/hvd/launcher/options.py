"""hvd/launcher/options.py: the command line of hvdrun, compatible with horovodrun's."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from hvd.command_line import Parser
from hvd.launcher import settings

EPILOG = """\
examples:
  %(prog)s -np 4 python train.py
  %(prog)s -np 8 -H h1:4,h2:4 python train.py --epochs 3
On one host ranks talk through shared memory; on several over MPI, if MPICH's mpiexec is there to start them, else over TCP.
The exit code is that of the first rank that failed, 128 + signal for one that was killed; 2 for a bad command line.
"""

PIN_HELP = """which GPU a rank gets, as hvd.pin and hvd.local_device() then report it: by_local_rank, round_robin,
compact, scatter, numa_near, list:A,B (ordinals, UUIDs, PCI addresses), from_scheduler, current or none; with commas:
shared or shared:N ranks on a GPU, and cpus=none, numa or exclusive (default: no GPU is looked at, cpus=exclusive)"""


def port(text: str) -> int:
    """The number of a TCP port."""
    try:
        return settings.whole(text, 1, 65535)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a port, from 1 to 65535") from None


def seconds(text: str) -> float:
    """A time of at least 0.001 seconds."""
    value = settings.number(text)
    if value < 1e-3:
        raise argparse.ArgumentTypeError(f"{text!r} is too short; allowed: from 0.001 seconds")
    return value


def words(text: str) -> list[str]:
    """Arguments in one text, split as by a shell."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def program_name() -> str:
    """The name by which this command was called: scripts written for Horovod use horovodrun."""
    return "horovodrun" if os.path.basename(sys.argv[0]) == "horovodrun" else "hvdrun"


def make_parser() -> Parser:
    """The parser of all options."""
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog=program_name(),
        usage="%(prog)s -np N [-H HOSTS] [OPTIONS] COMMAND [ARGUMENTS...]",
        description="Runs a command as N ranks of one job.",
        epilog=EPILOG,
        formatter_class=form,
        allow_abbrev=False,
    )
    parser.hint = "; options of the command come after its name"
    add = parser.add_argument
    add("-v", "--version", action="store_true", help="print the version")
    add("-np", "-n", "--num-proc", dest="np", type=settings.positive, metavar="N", help="how many ranks")
    add("-cb", "--check-build", action="store_true", help="print what this installation has")
    add("--verbose", action="store_true", help="print each step")
    add("--config-file", metavar="FILE", help="settings in YAML; options of the command line take precedence")
    add("--start-timeout", type=seconds, metavar="S", help="seconds for all ranks to start (default 30)")
    add("--restarts", type=settings.whole, default=0, metavar="N", help="how often all ranks start again after one has failed (default 0)")
    add("--output-filename", metavar="FOLDER", help="also write FOLDER/rank.N/stdout and stderr")
    add("-prefix-timestamp", "--prefix-output-with-timestamp", action="store_true", help="the time before each line")
    add("--disable-cache", action="store_true", default=None, help=settings.help_of("disable-cache"))
    place = parser.add_argument_group("hosts")
    place.add_argument("-H", "--hosts", metavar="HOSTS", help="hosts and their slots, such as h1:4,h2:4")
    place.add_argument("-hostfile", "--hostfile", metavar="FILE", help="the same, one per line: h1 slots=4, or h1:4")
    place.add_argument("--host-discovery-script", metavar="LINE", help="a command that prints them")
    place.add_argument("-p", "--ssh-port", type=port, metavar="PORT", help="port of ssh on the hosts")
    place.add_argument("-i", "--ssh-identity-file", metavar="FILE", help="a key for ssh")
    for name in ("--network-interfaces", "--network-interface"):
        place.add_argument(name, dest="network_interfaces", metavar="NAMES", help="for traffic between hosts, such as eth0,eth1 (default: those that all hosts reach)")
    place.add_argument("--tcp", action="store_true", help="use only TCP between hosts")
    place.add_argument("--mpi", action="store_true", help="use MPI on one host, too")
    place.add_argument("--gloo", action="store_true", default=None, help="on several hosts, use no MPI: ssh starts ranks, which talk over TCP")
    place.add_argument("--jsrun", action="store_true", default=None, help=settings.help_of("jsrun"))
    place.add_argument("--mpi-args", type=words, metavar="TEXT", help="more arguments for mpiexec.hydra")
    place.add_argument(
        "--binding-args", type=words, metavar="TEXT", help="-bind-to none, core or core:N (default core)"
    )
    place.add_argument("--pin", metavar="POLICY", help=PIN_HELP)
    place.add_argument("--show-placement", action="store_true", help="print the CPUs and GPUs of ranks; start nothing")
    settings.add_to(parser)
    add("--blacklist-cooldown-range", nargs=2, type=settings.whole, metavar=("MIN", "MAX"), help="seconds after which a host whose ranks have failed gets ranks again (default: never)")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def full_name(parser: argparse.ArgumentParser, word: str) -> str:
    """The full name of an abbreviated option, as argparse finds it. (argparse would also take the command's own options
    for hvdrun's.)
    """
    name, equals, value = word.partition("=")
    known = parser._option_string_actions
    if name in known or not name.startswith("--"):
        return word
    found = [option for option in known if option.startswith(name)]
    if len({id(known[option]) for option in found}) > 1:
        parser.error(f"ambiguous option: {name} could match {', '.join(found)}")
    return found[0] + equals + value if found else word


def joined(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """The arguments with full names, and `--mpi-args=-x` for `--mpi-args -x`, which argparse takes for two options."""
    result: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = full_name(parser, rest.pop(0))
        action = parser._option_string_actions.get(word)
        if word in ("--mpi-args", "--binding-args") and rest:
            word += f"={rest.pop(0)}"
            action = None
        result.append(word)
        if action is not None:
            count = 1 if action.nargs is None else int(action.nargs)
            result += rest[:count]
            del rest[:count]
    return result + rest


def parse(arguments: Sequence[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """The options, including those of the configuration file, and warnings. Exits with code 2 for invalid options."""
    parser = make_parser()
    options = parser.parse_args(joined(parser, sys.argv[1:] if arguments is None else arguments))
    if options.command[:1] == ["--"]:
        del options.command[0]
    for name, value in vars(options).items():  # argparse takes -n-- for -n without a value
        if value == [] and name != "command":
            parser.error(f"argument {name}: '--' is not a value")
    from_file: dict[str, Any] = {}
    if options.config_file is not None:
        try:
            from_file = settings.read_file(options.config_file)
        except ValueError as error:
            parser.error(str(error))
    for name, value in from_file.items():
        if getattr(options, name, None) is None:
            setattr(options, name, value)
    options.elastic = options.min_num_proc is not None or options.max_num_proc is not None
    if not (options.version or options.check_build):
        if options.np is None:
            parser.error("-np, the number of ranks, is missing")
        options.min_num_proc, options.max_num_proc = options.min_num_proc or options.np, options.max_num_proc or options.np
        if not options.min_num_proc <= options.np <= options.max_num_proc:
            parser.error(f"-np {options.np} is not from --min-np {options.min_num_proc} to --max-np {options.max_num_proc}")
        if options.restarts and options.elastic:
            parser.error("--restarts starts all ranks again, and --min-np those that have failed; give one of them")
        if not options.command and not options.show_placement:
            parser.error(f"the command is missing: {parser.prog} -np {options.np} python train.py")
        if sum(each is not None for each in (options.hosts, options.hostfile, options.host_discovery_script)) > 1:
            parser.error("-H, --hostfile and --host-discovery-script exclude each other")
    if from_file.get("controller") == "gloo":
        options.gloo = True
    if options.mpi and options.gloo:
        parser.error("--mpi and --gloo exclude each other")
    cases = ["always", *([] if options.host_discovery_script else ["without a script"])]
    if not options.elastic:
        cases.append("with a fixed number of ranks")
    said = settings.warnings(vars(options), *cases)
    if options.host_discovery_script and not options.elastic:
        said.append("--host-discovery-script is run once, at the start; with --min-np or --max-np again and again")
    return options, said
