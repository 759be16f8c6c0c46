"""hvd/launcher/options.py and settings.py: the command line, the configuration file, and what ranks find of them."""

from __future__ import annotations

import pytest

from hvd.launcher import options, settings

END = ["-np", "2", "program"]

# What horovodrun has (reference: its launch.py), each with what it takes.
FLAGS = {
    "--start-timeout": "5", "--network-interfaces": "eth0,eth1", "--network-interface": "eth0",
    "--output-filename": "folder", "-p": "22", "--ssh-port": "22", "-i": "key", "--ssh-identity-file": "key",
    "--fusion-threshold-mb": "64", "--cycle-time-ms": "2.5", "--cache-capacity": "2048",
    "--autotune-log-file": "log", "--autotune-warmup-samples": "1", "--autotune-steps-per-sample": "2",
    "--autotune-bayes-opt-max-samples": "3", "--autotune-gaussian-process-noise": "0.5", "--min-np": "2",
    "--min-num-proc": "2", "--max-np": "2", "--max-num-proc": "2", "--slots-per-host": "2", "--elastic-timeout": "600",
    "--reset-limit": "1", "--timeline-filename": "file", "--stall-check-warning-time-seconds": "30",
    "--stall-check-shutdown-time-seconds": "90", "--mpi-args": "-verbose -x", "--binding-args": "-bind-to none",
    "--num-nccl-streams": "2", "--thread-affinity": "0,1", "--gloo-timeout-seconds": "30", "--log-level": "debug",
    "-H": "localhost:2", "--hosts": "localhost:2", "-hostfile": "file", "--hostfile": "file",
    "--host-discovery-script": "file",
}  # fmt: skip
SWITCHES = """--verbose --disable-cache --hierarchical-allreduce --no-hierarchical-allreduce --hierarchical-allgather
    --no-hierarchical-allgather --torus-allreduce --no-torus-allreduce --autotune --no-autotune --timeline-mark-cycles
    --no-timeline-mark-cycles --stall-check --no-stall-check --mpi-threads-disable --no-mpi-threads-disable --tcp
    --log-with-timestamp --log-without-timestamp --log-hide-timestamp --no-log-hide-timestamp -prefix-timestamp
    --prefix-output-with-timestamp --gloo --mpi --jsrun""".split()


def variables(*words):
    return settings.variables(vars(options.parse([*words, *END])[0]))


@pytest.mark.parametrize("flag", FLAGS)
def test_each_flag_with_a_value(flag):
    parsed, _ = options.parse([flag, FLAGS[flag], *END])
    assert parsed.np == 2 and parsed.command == ["program"]


@pytest.mark.parametrize("flag", SWITCHES)
def test_each_switch(flag):
    assert options.parse([flag, *END])[0].command == ["program"]


@pytest.mark.parametrize("flag", ["-v", "--version", "-cb", "--check-build"])
def test_what_needs_no_command(flag):
    options.parse([flag])


@pytest.mark.parametrize("flag", ["-np", "-n", "--num-proc"])
def test_the_number_of_ranks(flag):
    assert options.parse([flag, "3", "program"])[0].np == 3


def test_what_follows_the_command_is_its_own():
    words = ["python", "train.py", "--verbose", "-np", "7", "--", "-H", "x"]
    assert options.parse(["-np", "2", *words])[0].command == words
    assert options.parse(["-np", "2", "--", "-program", "-v"])[0].command == ["-program", "-v"]


def test_arguments_for_others_may_look_like_options():
    parsed, _ = options.parse(["--mpi-args", "-verbose -iface eth0", "-np", "2", "p", "--mpi-args", "-x"])
    assert parsed.mpi_args == ["-verbose", "-iface", "eth0"] and parsed.command == ["p", "--mpi-args", "-x"]
    assert options.parse(["--binding-args=-bind-to core:2", *END])[0].binding_args == ["-bind-to", "core:2"]


@pytest.mark.parametrize(
    ("short", "value", "name"),
    [("--start", "5", "start_timeout"), ("--fusion", "64", "fusion_threshold_mb"), ("--host-d", "d.sh x", None),
     ("--verb", None, "verbose"), ("--min-n", "2", "min_num_proc"), ("--start=5", None, "start_timeout")],
)  # fmt: skip
def test_abbreviations(short, value, name):
    command = ["program", "--verb", "--n", "--xyz"]  # whose own options stay as they are
    parsed, _ = options.parse([short, *([value] if value else []), "-np", "2", *command])
    assert getattr(parsed, name or "host_discovery_script") == {"--host-d": "d.sh x", "--verb": True, "--fusion": 64,
                                                                "--min-n": 2}.get(short, 5.0)  # fmt: skip
    assert parsed.np == 2 and parsed.command == command
    assert options.parse(["--mpi-a", "-x", *END])[0].mpi_args == ["-x"]


def test_variables():
    assert variables() == {}
    assert variables("--fusion-threshold-mb", "64") == {"HOROVOD_FUSION_THRESHOLD": "67108864"}
    assert variables("--cycle-time-ms", "2.5", "--cache-capacity", "0") == {
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_CACHE_CAPACITY": "0",
    }
    assert variables("--stall-check") == {"HOROVOD_STALL_CHECK_DISABLE": "0"}
    assert variables("--no-stall-check", "--stall-check-warning-time-seconds", "5") == {
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
    }
    assert variables(
        "--autotune", "--autotune-log-file", "f", "--timeline-filename", "t", "--timeline-mark-cycles"
    ) == {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": "f",
        "HOROVOD_TIMELINE": "t",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
    }
    assert variables("--log-level", "debug", "--thread-affinity", "0,4", "--no-hierarchical-allreduce") == {
        "HOROVOD_LOG_LEVEL": "DEBUG",
        "HOROVOD_THREAD_AFFINITY": "0,4",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
    }


def test_what_changes_nothing_is_said():
    said = options.parse(["--jsrun", "--reset-limit", "1", *END])[1]
    assert said == [
        "--reset-limit has no effect here: it is for elastic jobs, which a minimum or a maximum of ranks asks for",
        "--jsrun has no effect here: ranks on several hosts are started by MPICH's mpiexec, or by ssh",
    ]
    assert options.parse(["--fusion-threshold-mb", "1", "--cycle-time-ms", "1", "--autotune", *END])[1] == []


@pytest.mark.parametrize("flag", settings.IDLE)
def test_each_option_without_effect(flag):
    """It is accepted, and reported in the case that the table has and in no other."""
    value = ["1", "2"] if flag == "blacklist-cooldown-range" else [FLAGS[f"--{flag}"]] if f"--{flag}" in FLAGS else []
    chosen, said = options.parse([f"--{flag}", *value, *END])
    found = settings.IDLE[flag]
    sentence = [f"--{flag} has no effect here: {found.why}"]
    assert said == (sentence if found.when in ("always", "without a script", "with a fixed number of ranks") else [])
    on_one_host = sentence if found.when == "on one host" else []
    if flag != "network-interface":  # another name of --network-interfaces
        assert settings.warnings(vars(chosen), "on one host") == on_one_host


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["program"], "-np, the number of ranks, is missing"),
        (["-np", "2"], "the command is missing: hvdrun -np 2 python train.py"),
        (["-np", "0", "program"], "'0' is not a whole number from 1"),
        (["-n--", "program"], "argument np: '--' is not a value"),
        (["-np", "2", "-H--", "program"], "argument hosts: '--' is not a value"),
        (["-np", "two", "program"], "'two' is not a whole number from 1"),
        (
            ["--fusion-treshold-mb", "3", *END],
            "--fusion-treshold-mb is not an option of hvdrun (--fusion-threshold-mb?)",
        ),
        (["--xyz", *END], "--xyz is not an option of hvdrun; options of the command come after its name"),
        (["--log-level", "loud", *END], "'loud' is not a level; allowed: TRACE, DEBUG, INFO, WARNING, ERROR, FATAL"),
        (["--autotune-gaussian-process-noise", "2", *END], "'2' is not from 0 to 1"),
        (["--cycle-time-ms", "-1", *END], "'-1' is not a number from 0"),
        (["--start-timeout", "0", *END], "'0' is too short"),
        (["--thread-affinity", "0-3", *END], "'0-3' is not a list of CPUs"),
        (["--mpi-args", "'", *END], "No closing quotation"),
        (["-p", "70000", *END], "'70000' is not a port"),
        (["-np", "9" * 5000, "program"], "9' is not a whole number from 1 to 1000000000000000"),
        (["--cache-capacity", "9" * 5000, *END], "9' is not a whole number from 0 to 1000000000000000"),
        (["-np", "\u0663", "program"], "'\u0663' is not a whole number from 1"),
        (["--min-np", "3", *END], "-np 2 is not from --min-np 3 to --max-np 2"),
        (["--max-num-proc", "1", *END], "-np 2 is not from --min-np 2 to --max-np 1"),
        (["--min-np", "0", *END], "'0' is not a whole number from 1"),
        (["--min-np", "1", "program"], "-np, the number of ranks, is missing"),
        (["--min-np", "1", "--restarts", "2", *END], "--restarts starts all ranks again, and --min-np those that have failed"),
        (["--autot", *END], "ambiguous option: --autot could match --autotune, --autotune-log-file"),
        (["-H", "a", "-hostfile", "b", *END], "-H, --hostfile and --host-discovery-script exclude each other"),
    ],
)
def test_bad_command_lines(words, sentence, capsys):
    with pytest.raises(SystemExit) as left:
        options.parse(words)
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("hvdrun: ") and sentence in said


FILE = """
controller: gloo
params: {fusion_threshold_mb: 32, cycle_time_ms: 10, cache-capacity: 2048, hierarchical_allreduce: true}
autotune: {enabled: true, log_file: log.txt, warmup_samples: 5, gaussian_process_noise: 0.9}
timeline: {filename: t.json, mark_cycles: false}
stall_check: {enabled: false, warning_time_seconds: 120}
library_options: {num_nccl_streams: 2}
logging: {level: info, hide_timestamp: true}
"""


def test_a_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(FILE)
    assert variables("--config-file", str(path), "--fusion-threshold-mb", "1", "--stall-check") == {
        "HOROVOD_FUSION_THRESHOLD": "1048576",  # the command line comes first
        "HOROVOD_STALL_CHECK_DISABLE": "0",
        "HOROVOD_CYCLE_TIME": "10",
        "HOROVOD_CACHE_CAPACITY": "2048",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": "log.txt",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "5",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.9",
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "0",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "120",
        "HOROVOD_NUM_NCCL_STREAMS": "2",
        "HOROVOD_LOG_LEVEL": "INFO",
    }
    path.write_text("")
    assert variables("--config-file", str(path)) == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("params: {fusion: 1}", "params.fusion is unknown; allowed: params.cache_capacity, "),
        ("parameters: {a: 1}", "parameters.a is unknown; allowed: autotune, controller, library_options, "),
        ("params: 3", "section params has no keys"),
        ("- 3", "must have sections"),
        ("params: [", "is not YAML"),
        ("params: {fusion_threshold_mb: much}", "params.fusion_threshold_mb: 'much' is not a whole number from 0"),
        ("autotune: {enabled: 7}", "autotune.enabled: '7' is not true or false"),
    ],
)
def test_bad_files(text, sentence, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ValueError) as refused:
        settings.read_file(str(path))
    assert str(refused.value).startswith(f"--config-file {path}") and sentence in str(refused.value)


def test_a_file_that_is_not_there(capsys):
    with pytest.raises(SystemExit):
        options.parse(["--config-file", "/nowhere/x", *END])
    assert "--config-file /nowhere/x cannot be read: No such file or directory" in capsys.readouterr().err
