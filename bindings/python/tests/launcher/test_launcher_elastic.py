"""hvdrun --min-np: an elastic job goes on when ranks fail, and takes in new ones."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from launcher_support import LIMIT, ROOT, end_of_all, environment, hvdrun

from hvd.launcher import elastic as elastic_module
from hvd.launcher.hosts import Discovery
from hvd.launcher.rounds import Failure, Limits, Rounds

# Each sample is one number; all ranks know which ones the committed steps have used. FAIL: "slot.start:step:how, ...":
# the worker of that start in that slot, counted from 0, fails at that step, or at its first one after it.
SCRIPT = """
import json, os, pathlib, signal, sys, time
import numpy, hvd, hvd.elastic

slot = os.environ["HVD_ELASTIC_SLOT"]
own = f"{slot}.{len(list(pathlib.Path('born').glob(slot + '-*')))}"
pathlib.Path("born", f"{slot}-{os.getpid()}").touch()
failures = [one.split(":") for one in os.environ.get("FAIL", "").split(",") if one]

def fail(step):
    for who, at, how in failures:
        if who == own and step >= int(at):
            os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else os._exit(int(how))

fail(-1)
hvd.init()
SAMPLES = 240

@hvd.elastic.run
def train(state):
    while len(state.seen) < SAMPLES:
        pathlib.Path("begun").touch()
        fail(state.step)
        rest = [i for i in range(SAMPLES) if i not in set(state.seen)]
        mine = rest[hvd.rank() :: hvd.size()][:2]
        state.seen = state.seen + hvd.allgather(numpy.array(mine, int)).tolist()
        state.weight += float(hvd.allreduce(numpy.ones(1), op=hvd.Average)[0])
        state.step += 1
        state.sizes = state.sizes + [hvd.size()]
        time.sleep(float(os.environ.get("PAUSE", "0.01")))
        if state.step % 3 == 0:
            state.commit()
    return state

state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, seen=[], weight=0.0, step=0, sizes=[])
train(state)
print("RESULT", json.dumps([hvd.rank(), hvd.size(), sorted(state.seen), state.weight, state.step, state.sizes]), flush=True)
"""
KILLED = "was killed by SIGKILL (Killed)"


@pytest.fixture
def elastic(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "born").mkdir()

    def run(*words, **env):
        return hvdrun(*words, sys.executable, "train.py", cwd=tmp_path, **env)

    return run


def results(done):
    return [json.loads(text) for text in re.findall(r"RESULT (.*)", done.stdout)]


def said(done):
    return [line.removeprefix("hvdrun: ") for line in done.stderr.splitlines() if line.startswith("hvdrun: ")]


def check_end(done, ranks):
    """All ranks of the last round end with the same state, in which each sample is once."""
    assert done.returncode == 0, done.stderr
    found = sorted(results(done))
    assert [one[0] for one in found] == list(range(len(found)))
    assert {one[1] for one in found} == {len(found)} and len(found) in ranks
    assert len({json.dumps(one[2:]) for one in found}) == 1
    _, _, seen, weight, step, sizes = found[0]
    assert seen == list(range(240))
    assert weight == step == len(sizes)
    return sizes


def test_a_killed_rank_is_left_out_and_another_one_joins(elastic):
    done = elastic("-np", "3", "--min-np", "2", FAIL="1.0:7:kill", PAUSE="0.1")
    sizes = check_end(done, {3})
    assert sizes[:6] == [3] * 6 and 2 in sizes[6:] and sizes[-1] == 3, sizes
    assert said(done) == [
        f"rank 1 of 3 on localhost (slot 1, round 1) {KILLED}; another one starts in its place; 2 ranks are left",
        "round 2 begins with 2 ranks",
        "round 3 begins with 3 ranks, 1 of them new",
    ]


def test_only_failed_ranks_start_again(elastic):
    """With --min-np at -np, the others wait for the new one, and none of their state is lost."""
    done = elastic("-np", "2", "--min-np", "2", FAIL="1.0:7:kill")
    assert set(check_end(done, {2})) == {2}
    assert said(done) == [
        f"rank 1 of 2 on localhost (slot 1, round 1) {KILLED}; another one starts in its place; 1 rank is left",
        "round 2 begins with 2 ranks, 1 of them new",
    ]


def test_a_host_has_slots_for_more_ranks(elastic):
    """The first round begins with two of the processes, and the third one joins them."""
    done = elastic("-np", "2", "--max-np", "3", "-H", "localhost:4", PAUSE="0.1")
    assert set(check_end(done, {3})) == {2, 3}


def test_a_timeline_has_all_rounds(elastic, tmp_path):
    done = elastic("-np", "2", "--min-np", "2", FAIL="1.0:7:kill", HOROVOD_TIMELINE="timeline.json")
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "timeline.json").read_text())
    assert len({event["args"]["process"] for event in events if event.get("name") == "hvd_rank"}) == 3
    rounds = [(event["ts"], event["args"]["text"]) for event in events if event.get("name") == "ROUND"]
    assert [text for _, text in rounds] == said(done) and len(rounds) == 2
    assert 0 < rounds[0][0] <= rounds[1][0] < max(event.get("ts", 0) for event in events)


def test_the_last_ranks_finish_without_the_new_one(elastic):
    done = elastic("-np", "2", "--min-np", "1", FAIL="1.0:57:kill", PAUSE="0")
    sizes = check_end(done, {1, 2})
    assert sizes[:57] == [2] * 57


def test_several_failures(elastic):
    done = elastic("-np", "3", "--min-np", "1", FAIL="0.0:4:kill,2.0:10:3,0.1:20:kill", PAUSE="0.1")
    check_end(done, {1, 2, 3})
    assert len([line for line in said(done) if "starts in its place" in line]) == 3, done.stderr


def test_a_rank_that_dies_before_init(elastic):
    done = elastic("-np", "2", "--min-np", "1", FAIL="1.0:-1:5")
    check_end(done, {2})
    assert said(done) == [
        "a new process in slot 1 on localhost ended with exit code 5; another one starts in its place"
    ]


def test_all_ranks_fail(elastic):
    done = elastic("-np", "2", "--min-np", "1", FAIL="0.0:5:7,1.0:5:7")
    assert done.returncode == 7
    who = r"rank ([01]) of 2 on localhost \(slot \1, round 1\)"
    assert re.fullmatch(f"{who} ended with exit code 7, and no other rank is left", said(done)[-1])


def test_too_few_ranks_are_left(elastic):
    done = elastic("-np", "2", "--min-np", "2", "--max-np", "3", FAIL="1.0:5:kill,1.1:-1:9,2.0:20:kill", PAUSE="0.1")
    assert done.returncode in (9, 137)  # of what failed first in the last round
    barred = "localhost gets no more ranks after 2 failures in slot 1, the last one at"
    ended = f"({re.escape(KILLED)}|ended with exit code 9)"
    why = rf"(rank [012] of [23]|a new process in slot 1) on localhost .*{ended}, and 1 of the 2 ranks that this job needs can run: {barred} [0-9:]{{8}}"
    assert re.fullmatch(why, said(done)[-1]), done.stderr


def test_a_reset_limit(elastic):
    done = elastic("-np", "3", "--min-np", "1", "--reset-limit", "1", FAIL="0.0:5:kill,1.0:20:kill", PAUSE="0.1")
    assert done.returncode == 137, done.stderr
    assert f"{KILLED}, and the ranks have changed 1 times, as often as they may (--reset-limit)" in said(done)[-1]


def test_what_else_runs_is_no_worker(elastic, tmp_path):
    """A program that a worker starts, and a script in a shell."""
    (tmp_path / "train.py").write_text(
        "import os, subprocess, sys, hvd\n"
        "hvd.init()\n"
        "done = subprocess.run([sys.executable, '-c', 'import hvd; hvd.init()'], capture_output=True, text=True)\n"
        "print(done.stderr.splitlines()[-1], os.getpid(), hvd.size())\n"
    )
    done = hvdrun("-np", "2", "--min-np", "1", "sh", "-c", f"{sys.executable} train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    refused = "hvd.exceptions.HorovodInternalError: hvd: process ([0-9]+) is already the worker in slot {} of this elastic job"
    for slot in range(2):
        found = re.search(rf"^\[{slot}\]<stdout>: {refused.format(slot)} ([0-9]+) 2$", done.stdout, re.MULTILINE)
        assert found and found[1] == found[2], done.stdout


def test_a_folder_with_a_long_name(elastic, tmp_path):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    check_end(elastic("-np", "2", "--min-np", "1", TMPDIR=str(deep)), {2})
    assert not list(deep.iterdir())


def test_nothing_is_left_when_hvdrun_is_killed(tmp_path):
    words = [sys.executable, "-m", "hvd.launcher.main", "-np", "2", "--min-np", "1"]
    script = "import hvd, time; hvd.init(); print('here', flush=True); time.sleep(100)"
    env = environment(TMPDIR=str(tmp_path))
    process = subprocess.Popen([*words, sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and "here" in process.stdout.readline() + process.stdout.readline()
    assert len(list(tmp_path.iterdir())) == 1
    process.kill()
    process.communicate()
    until = time.monotonic() + LIMIT
    while list(tmp_path.iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not list(tmp_path.iterdir())


def test_the_example():
    pytest.importorskip("torch")
    script = str(ROOT / "examples" / "python" / "elastic_digits.py")
    words = [sys.executable, "-m", "hvd.launcher.main", "-np", "3", "--min-np", "2", sys.executable, script]
    process = subprocess.Popen(
        [*words, "--epochs", "3", "--pause", "0.05"], env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    out = []
    for line in process.stdout:
        out.append(line)
        if "epoch 0" in line:
            victim = next(found for each in out if (found := re.search(r"process ([0-9]+) is rank 1 of 3", each)))
            os.kill(int(victim[1]), signal.SIGKILL)
    assert process.wait() == 0, "".join(out)
    ended = [found.groups() for line in out if (found := re.search(r"rank ([0-9]) of ([23]): weights ([0-9a-f]+)", line))]
    assert sorted(rank for rank, _, _ in ended) == [str(rank) for rank in range(len(ended))]
    assert {int(size) for _, size, _ in ended} == {len(ended)} and len({weights for _, _, weights in ended}) == 1
    assert any("round 2 begins with 2 ranks" in line for line in out)


@pytest.fixture
def script(tmp_path):
    """A discovery script that prints what a file has, and a function that writes the file."""
    (tmp_path / "hosts").touch()

    def write(text):
        (tmp_path / "next").write_text(text)
        (tmp_path / "next").rename(tmp_path / "hosts")

    write.line = f"cat {tmp_path}/hosts | sh"
    write.words = ["--host-discovery-script", write.line]
    return write


def test_a_start_timeout_is_for_no_slot_without_a_host(script):
    script("echo localhost:1")
    words = ["-np", "1", "--max-np", "3", "--start-timeout", "1", "--host-discovery-script", script.line]
    done = hvdrun(*words, "sh", "-c", "sleep 2; echo done")
    assert done.returncode == 0 and "done" in done.stdout, done.stderr


def start(tmp_path, *words, begin=(sys.executable, "-m", "hvd.launcher.main"), **env):
    """An elastic job, and a function that waits for a sentence of hvdrun."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "born").mkdir(exist_ok=True)
    env = environment(**{"PAUSE": "0.1", **env})
    command = [*begin, *words, sys.executable, "train.py"]
    job = subprocess.Popen(command, cwd=tmp_path, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    heard: list[str] = []

    def wait_for(text):
        assert job.stderr is not None
        for line in job.stderr:
            heard.append(line)
            if text in line:
                return
        raise AssertionError("".join(heard))

    return job, wait_for


def test_hosts_that_a_script_finds(tmp_path, script):
    """None at first; then one, a second one, one that fails once, and a smaller one."""
    job, wait_for = start(tmp_path, *script.words, "-np", "1", "--min-np", "1", "--max-np", "3")
    script("echo localhost:1")
    wait_for("localhost has 1 slot")
    script("echo localhost:1; echo 127.0.0.1 slots=2")
    wait_for("with 3 ranks")
    script("exit 3")
    wait_for("ended with exit code 3; the hosts stay as they are")
    script("echo 127.0.0.1")
    wait_for("127.0.0.1 has 1 slot; localhost is gone")
    wait_for("with 1 rank")
    out, err = job.communicate(timeout=LIMIT)
    assert job.returncode == 0, err
    (end,) = [json.loads(text) for text in re.findall(r"RESULT (.*)", out)]
    assert end[:2] == [0, 1] and end[2] == list(range(240)) and end[3] == end[4] == len(end[5])
    assert [size for size, before in zip(end[5], [0, *end[5]]) if size != before] in ([1, 3, 1], [1, 2, 3, 1])


@pytest.mark.parametrize(("text", "sentence"), [
    ("exit 3", "ended with exit code 3"),
    ("echo a b c", "line 1: 'a b c' is not a host"),
    ("kill -9 $$", "was killed by SIGKILL (Killed)"),
])  # fmt: skip
def test_a_script_that_fails_at_first(tmp_path, script, text, sentence):
    script(text)
    line = script.line if "kill" not in text else text
    done = hvdrun("-np", "1", "--min-np", "1", "--host-discovery-script", line, "true")
    assert done.returncode == 1 and len(said(done)) == 1 and sentence in said(done)[0], done.stderr


def test_a_script_that_hangs(monkeypatch):
    monkeypatch.setattr(Discovery, "LONGEST", 0.2)
    found = Discovery("echo a; sleep 100")
    with pytest.raises(ValueError, match="echo a; sleep 100 has not ended within 0.2 s"):
        while found.poll() is None:
            time.sleep(0.01)
    found.close()


@pytest.mark.parametrize("options", [[], ["--min-np", "1"]])
def test_a_script_ends_with_hvdrun(tmp_path, options):
    """So does all that it has started."""
    line = f"sleep 1000 & echo $$ $! >{tmp_path}/new; mv {tmp_path}/new {tmp_path}/pids; wait"
    job = subprocess.Popen(
        [sys.executable, "-m", "hvd.launcher.main", "-np", "1", *options, "--host-discovery-script", line, "true"],
        env=environment(),
    )
    until = time.monotonic() + LIMIT
    while not (tmp_path / "pids").exists() and time.monotonic() < until:
        time.sleep(0.01)
    job.kill()
    job.wait()
    end_of_all([int(pid) for pid in (tmp_path / "pids").read_text().split()])


def test_a_name_server_that_does_not_answer(monkeypatch):
    """The job goes on without the new host until there is an answer, and asks once."""
    answer, asked, said = threading.Event(), [], []

    def wait(name, env):
        asked.append(name)
        return not answer.wait(LIMIT)

    monkeypatch.setattr(elastic_module, "is_away", wait)
    discovery = Discovery("")
    monkeypatch.setattr(discovery, "poll", lambda: [("new", 1)])
    job = elastic_module.ElasticJob({}, print, None, said.append, Limits(1, 1, 1), {}, discovery, None, ("", ""), {})
    for _ in range(3):
        job._discover(discovery)
    assert asked == ["new"] and said == []
    answer.set()
    deadline = time.monotonic() + LIMIT
    while not said and time.monotonic() < deadline:
        job._discover(discovery)
        time.sleep(0.01)
    assert asked == ["new"] and said == ["new has 1 slot"]
    job.close()


# The rules alone, without processes.


class Recorder:
    def __init__(self):
        self.done = []

    def __getattr__(self, name):
        return lambda *words: self.done.append((name, *words))

    def start(self, slot, host):
        self.done.append(("start", slot))

    def machine(self, host):
        return host.partition(".")[0]

    def take(self, *names):
        taken, self.done = [one for one in self.done if not names or one[0] in names], []
        return taken


def rounds(least, first, most, hosts=None, fixed=True, **limits):
    actions = Recorder()
    made = Rounds(Limits(least, first, most, **limits), hosts or {"a": most}, actions, fixed)
    made.begin()
    assert actions.take() == [("start", slot) for slot in range(most)]
    return made, actions


def ask(made, *slots):
    for slot in slots:
        made.asked(slot)


def test_the_first_round_waits_for_np():
    made, actions = rounds(1, 2, 3)
    made.asked(2)
    assert actions.take() == []
    made.asked(0)
    # The oldest has rank 0.
    assert actions.take("place") == [("place", 0, 0, ["a", "a"], 1), ("place", 2, 1, ["a", "a"], 1)]
    made.asked(1)
    assert actions.take() == [("change", 0, 1)]
    ask(made, 0, 2)
    # The one that has come last has the highest rank, although its process is older than another's.
    assert actions.take("place") == [("place", s, r, ["a"] * 3, 2) for r, s in enumerate([0, 2, 1])]


def test_ranks_of_one_machine_are_together():
    """Two of the names are one machine's."""
    made, actions = rounds(3, 3, 3, {"a.1": 1, "b": 1, "a.2": 1})
    made.begin()
    for slot in range(3):
        made.asked(slot)
    hosts = ["a.1", "a.2", "b"]
    assert actions.take("place") == [("place", 0, 0, hosts, 1), ("place", 2, 1, hosts, 1), ("place", 1, 2, hosts, 1)]


def test_ranks_that_cannot_join_each_other_again_and_again():
    """The ranks cannot reach each other, although none has failed. A round in which they get further sets the count to 0."""
    made, actions = rounds(2, 2, 2)
    made.begin()
    for _ in range(3):
        ask(made, 0, 1)
    made.synchronised(0)
    for _ in range(3):
        ask(made, 0, 1)
        assert not made.ended
    ask(made, 0, 1)
    assert made.number == 6 and made.ended
    (sentence,) = [why for name, *_, why in actions.take("fail_job")]
    assert sentence == "the same 2 ranks have met 3 times and could not join: do they reach each other?"


def test_the_oldest_keep_the_lowest_ranks():
    made, actions = rounds(1, 3, 3)
    ask(made, 0, 1, 2)
    actions.take()
    made.exited(0, -9)
    assert actions.take("start") == [("start", 0)]
    ask(made, 1, 2)
    assert actions.take("place") == [("place", 1, 0, ["a", "a"], 2), ("place", 2, 1, ["a", "a"], 2)]
    made.asked(0)
    assert actions.take() == [("change", 1, 1)]
    ask(made, 2, 1)
    assert actions.take("place") == [("place", 1, 0, ["a"] * 3, 3), ("place", 2, 1, ["a"] * 3, 3), ("place", 0, 2, ["a"] * 3, 3)]


def test_ranks_of_a_host_are_together():
    made, actions = rounds(1, 3, 3, {"a": 2, "b": 1})
    ask(made, 0, 1, 2)
    actions.take()
    made.exited(0, -9)
    ask(made, 0, 1, 2)  # rank 0 is on a again, with the youngest one
    ask(made, 1, 2)
    assert [(slot, rank) for _, slot, rank, *_ in actions.take("place")][-3:] == [(1, 0), (0, 1), (2, 2)]


def test_a_host_where_a_slot_fails_twice_gets_no_more():
    made, actions = rounds(1, 2, 2)
    ask(made, 0, 1)
    made.exited(1, 1)
    made.asked(0)
    made.exited(1, 1)
    assert ("start", 1) in actions.take()[:4]
    made.exited(0, 1)
    failure = Failure(0, "rank 0 of 1 on a (slot 0, round 2)", 1)
    assert actions.take("fail_job", "start") == [("fail_job", failure, "and it was the only rank")]
    # A commit sets the count of failures to zero.
    made, actions = rounds(1, 2, 2)
    ask(made, 0, 1)
    for _ in range(5):
        made.exited(1, -9)
        ask(made, 0, 1)
        ask(made, 0)
        made.committed(1)
    assert len(actions.take("start")) == 5


def test_a_host_gets_ranks_again_after_its_cooldown():
    made, actions = rounds(1, 2, 2, {"a": 1, "b": 1}, cooldown=(1, 3600))
    ask(made, 0, 1)
    times = []
    for seconds in (1, 2, 4):
        for _ in range(2):
            made.exited(1, 1)
            ask(made, 0)
        assert actions.take("start", "say")[-2][1].endswith("; 1 rank is left") and not made.ended
        times.append(made.deadline() - time.monotonic())
        assert seconds - 0.1 < times[-1] <= seconds * 1.1
        made._barred["b"] = (made._barred["b"][0], 0.0)
        made.tick()
        assert actions.take() == [("say", "b gets ranks again"), ("start", 1)]
        ask(made, 1, 0)
        actions.take()
        ask(made, 0)


def test_hosts_come_and_go():
    made, actions = rounds(1, 2, 3, {"a": 2, "b": 1}, fixed=False)
    ask(made, 0, 1, 2)
    ask(made, 0, 1)
    actions.take()
    # Slots of a that it has no more, and a new host: the change is mixed, and rank 0 is told of it once.
    made.found({"b": 1, "a": 1, "c": 1})
    assert actions.take() == [("say", "a has 1 slot; c has 1 slot"), ("change", 0, 2)]
    ask(made, 0, 2, 1)
    assert actions.take("dismiss", "place") == [("dismiss", 1), ("place", 0, 0, ["a", "b"], 3), ("place", 2, 1, ["a", "b"], 3)]
    made.exited(1, 0)
    assert actions.take() == [("start", 1)]
    made.asked(1)
    assert actions.take() == [("change", 0, 1)]
    ask(made, 0, 2)
    assert actions.take("place")[-1] == ("place", 1, 2, ["a", "b", "c"], 4)
    # A rank whose host is gone, and that fails, gets no successor there.
    made.found({"a": 1, "b": 1})
    assert actions.take() == [("say", "c is gone"), ("change", 0, 2)]
    made.exited(1, -9)
    assert [name for name, *_ in actions.take()] == ["say"]
    # None of the hosts has a rank: the oldest one stays until another one has its state.
    ask(made, 0, 2)
    actions.take()
    made.found({"d": 1})
    assert actions.take() == [("say", "d has 1 slot; a is gone; b is gone"), ("start", 1), ("change", 0, 2)]
    made.asked(1)
    assert actions.take() == [("change", 0, 1)]
    ask(made, 0, 2)
    assert actions.take("dismiss", "place") == [("dismiss", 2), ("place", 0, 0, ["a", "d"], 6), ("place", 1, 1, ["a", "d"], 6)]
    made.synchronised(1)
    assert actions.take() == [("change", 0, 2)]
    ask(made, 0, 1)
    assert actions.take("dismiss", "place") == [("dismiss", 0), ("place", 1, 0, ["d"], 7)]
    made.asked(0)  # a program that goes on after SystemExit
    assert actions.take() == [("dismiss", 0)]
    made.exited(0, 1)
    made.exited(2, 0)
    assert actions.take() == []
    made.exited(1, 0)
    assert actions.take() == [("succeed",)] and made.winners == {0: 1}


def test_all_hosts_are_others_and_the_ranks_as_many_as_allowed():
    made, actions = rounds(1, 2, 2, {"a": 2}, fixed=False)
    ask(made, 0, 1)
    actions.take()
    made.found({"b": 2})
    assert actions.take() == [("say", "b has 2 slots; a is gone"), ("change", 0, 2)]
    ask(made, 0, 1)
    assert actions.take("dismiss", "place") == [("dismiss", 1), ("place", 0, 0, ["a"], 2)]
    made.exited(1, 0)
    made.asked(1)
    assert actions.take() == [("start", 1), ("change", 0, 1)]
    made.asked(0)
    made.synchronised(1)
    assert actions.take("change") == [("change", 0, 2)]
    ask(made, 0, 1)
    made.exited(0, 0)
    assert actions.take("dismiss", "place", "start") == [("dismiss", 0), ("place", 1, 0, ["b"], 4), ("start", 0)]
    # The last rank with the state is lost, and the other one does not have it yet.
    made.asked(0)
    made.asked(1)
    assert ("place", 0, 1, ["b", "b"], 5) in actions.take()
    made.exited(1, -9)
    failure = Failure(1, "rank 0 of 2 on b (slot 1, round 5)", -9)
    assert actions.take() == [("fail_job", failure, "and the ranks that are left do not have the job's state yet")]


def test_hosts_that_are_too_few_are_awaited():
    made, actions = rounds(2, 2, 2, {"a": 2}, fixed=False, timeout=0.05)
    for _ in range(2):
        made.exited(0, 1)
    assert not made.ended
    made.asked(1)
    made.found({})
    assert actions.take("dismiss") == [("dismiss", 1)]
    time.sleep(0.06)
    made.tick()
    (failed,) = actions.take("fail_job")
    assert failed[1] == Failure(0, "a new process in slot 0 on a", 1)
    assert re.fullmatch(r"and 0 of the 2 ranks that this job needs have come within 0.05 s \(--elastic-timeout\): a gets no more ranks after .*", failed[2])


@pytest.mark.parametrize("limits", [{}, {"cooldown": (1, 1), "timeout": 0.5}, {"cooldown": (1, 1), "timeout": 5.0}, {"fixed": False, "timeout": 0.05}])
def test_a_program_that_always_fails(limits):
    made, actions = rounds(1, 1, 1, **limits)
    made.exited(0, 3)
    made.exited(0, 3)
    if limits.get("timeout", 0) in (0.05, 5.0):  # others may come in time
        assert not made.ended
        time.sleep(max(0, made.deadline() - time.monotonic()))
        made.tick()
    if limits.get("timeout") == 5.0:
        assert actions.take("start")[-1] == ("start", 0)
    else:
        ((_, failure, why),) = actions.take("fail_job")
        assert failure == Failure(0, "a new process in slot 0 on a", 3) and "of the 1 ranks that this job needs" in why


def test_nobody_starts_when_nobody_can_come_in():
    made, actions = rounds(2, 2, 2, resets=0)
    ask(made, 0, 1)
    actions.take()
    made.exited(1, -9)
    assert [name for name, *_ in actions.take()] == ["say"]
    made.asked(0)
    failure = Failure(1, "rank 1 of 2 on a (slot 1, round 1)", -9)
    assert actions.take() == [("fail_job", failure, "and the ranks have changed 0 times, as often as they may (--reset-limit)")]
    made, actions = rounds(1, 2, 2, {"a": 2}, fixed=False)
    ask(made, 0, 1)
    actions.take()
    made.exited(1, 0)
    made.found({"a": 2, "b": 1})
    assert actions.take() == []


def test_success_ends_the_job():
    made, actions = rounds(1, 2, 2)
    ask(made, 0, 1)
    actions.take()
    made.exited(1, 0)
    made.exited(0, 0)
    assert actions.take() == [("succeed",)] and made.ended
    made, actions = rounds(1, 2, 2)
    ask(made, 0, 1)
    actions.take()
    made.exited(1, 0)
    made.asked(0)
    assert actions.take() == [("refuse_worker", 0, "rank 1 has ended with success, so this job begins no new round")]
    made.exited(0, 3)
    failure = Failure(0, "rank 0 of 2 on a (slot 0, round 1)", 3)
    assert actions.take() == [("fail_job", failure, "after rank 1 had ended with success")]
    # A new worker that has come too late does not keep the job.
    made, actions = rounds(1, 2, 2)
    ask(made, 0, 1)
    made.exited(1, -9)
    ask(made, 0)
    actions.take()
    made.exited(0, 0)
    assert actions.take("say") == [("say", "the new process in slot 1 came too late and was not needed")] and made.ended
    made, actions = rounds(1, 3, 3)
    ask(made, 0, 1, 2)
    made.exited(2, -9)
    ask(made, 0, 1)
    actions.take()
    made.exited(1, 0)
    made.asked(2)
    assert actions.take() == [("dismiss", 2)]
    made.exited(2, 0)
    made.exited(0, 0)
    assert actions.take() == [("succeed",)]


def test_a_new_process_that_ends_without_an_error_is_no_success():
    made, actions = rounds(1, 3, 3)
    ask(made, 0, 1, 2)
    made.exited(2, -9)
    ask(made, 0, 1)
    actions.take()
    made.exited(2, 0)
    text = "a new process in slot 2 on a has ended without an error before it joined; its place stays free"
    assert actions.take() == [("say", text)]
    made.exited(1, -9)
    made.asked(0)
    assert actions.take("place") == [("place", 0, 0, ["a"], 3)]


def test_programs_without_hvd():
    made, actions = rounds(1, 2, 2)
    made.exited(1, 0)
    assert actions.take() == []
    made.exited(0, 0)
    assert actions.take() == [("succeed",)]
    made, actions = rounds(2, 2, 2)
    made.exited(1, 0)
    made.asked(0)
    assert actions.take() == [("fail_job", None, "1 of the 2 ranks that this job needs can run")]


def test_deadlines():
    made, actions = rounds(1, 2, 2, timeout=0.05)
    made.asked(0)
    made.tick()
    assert actions.take() == []
    time.sleep(0.06)
    made.tick()
    assert actions.take() == [("fail_job", None, "1 of the 2 ranks that this job needs have come within 0.05 s (--elastic-timeout)")]
    made, actions = rounds(1, 2, 2, timeout=0.05)
    ask(made, 0, 1)
    assert made.deadline() is None
    made.asked(1)
    actions.take()
    time.sleep(0.06)
    made.tick()
    text = "rank(s) 0 did not leave round 1 within 0.05 s (--elastic-timeout), as others have"
    assert actions.take() == [("fail_job", None, text)]
