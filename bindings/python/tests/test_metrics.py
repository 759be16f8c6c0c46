"""hvd.metrics() counts what was done, and HVD_METRICS publishes it in Prometheus' text format."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rank_jobs import Job, rank_environment
from test_basics import end_ranks, run_alone, start_ranks

import hvd


def counted(kind: str, process_set: Any = 0) -> dict[str, Any]:
    nothing = dict.fromkeys(["operations", "failed", "bytes", "waits", "exposed_seconds"], 0)
    found = [o for o in hvd.metrics()["operations"] if (o["kind"], o["process_set"]) == (kind, process_set)]
    return found[0] if found else nothing


def check_counters() -> None:
    before, gathered = counted("allreduce"), counted("allgather")
    steps = hvd.metrics()["steps"], hvd.metrics()["samples"]
    hvd.allreduce(np.ones(3, np.float32), name="a")
    hvd.grouped_allreduce([np.ones(2, np.float64), np.ones(5, np.float64)], name="b")
    hvd.allgather(np.ones((hvd.rank(), 4), np.uint8), name="c")
    after = counted("allreduce")
    assert after["operations"] - before["operations"] == 2
    assert after["bytes"] - before["bytes"] == 12 + 56
    assert after["failed"] == before["failed"]
    assert counted("allgather")["bytes"] - gathered["bytes"] == 4 * hvd.rank()
    hvd.mark_step()
    hvd.mark_step(samples=32)
    found = hvd.metrics()
    assert (found["steps"] - steps[0], found["samples"] - steps[1]) == (2, 32)
    assert (found["rank"], found["size"], found["in_flight"]) == (hvd.rank(), hvd.size(), 0)
    assert found["exposed_seconds"] == pytest.approx(sum(o["exposed_seconds"] for o in found["operations"]))
    with pytest.raises(ValueError, match=r"mark_step\(-1\): samples is the number of samples in the step, 0 or more"):
        hvd.mark_step(-1)
    json.dumps(found)


def test_counters(ranks: Any) -> None:
    ranks.run(check_counters)


def check_waits() -> None:
    hvd.barrier()
    before = counted("allreduce")
    handle = None
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(3), name="late")
        found = hvd.metrics()
        assert found["in_flight"] == 1 and found["oldest_seconds"] > 0
        waiting = threading.Thread(target=hvd.synchronize, args=(handle,))
        waiting.start()
        time.sleep(0.15)
    hvd.barrier()
    if hvd.rank() != 0:
        hvd.allreduce(np.ones(3), name="late")
    else:
        waiting.join()
        after = counted("allreduce")
        assert after["exposed_seconds"] - before["exposed_seconds"] > 0.1
        assert after["waits"] - before["waits"] == 1  # however many slices it was made of


def test_a_wait_is_exposed_time(several_ranks: Any) -> None:
    several_ranks.run(check_waits)


def check_failures() -> None:
    before = counted("allreduce")
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce(np.ones(3 + hvd.rank()), name="mismatch")
    after = counted("allreduce")
    assert (after["operations"] - before["operations"], after["failed"] - before["failed"]) == (1, 1)


def test_failures_are_counted(several_ranks: Any) -> None:
    several_ranks.run(check_failures)


def test_outside_a_job() -> None:
    result = run_alone("import hvd\nhvd.metrics()")
    assert result.stderr.strip().endswith("ValueError: Horovod has not been initialized; use hvd.init().")


WORK = """
    import numpy as np, hvd, sys
    hvd.init()
    for _ in range(4):
        hvd.allreduce(np.ones(3, np.float32), name="w")
    hvd.mark_step(8)
    print("ready", flush=True)
    sys.stdin.readline()
"""


def values(text: str) -> dict[tuple[str, str], float]:
    families = list(text_string_to_metric_families(text))
    return {(s.name, s.labels.get("kind", "")): s.value for family in families for s in family.samples}


def test_a_file(tmp_path: Path) -> None:
    processes = start_ranks(2, WORK, HVD_METRICS=str(tmp_path / "hvd.prom"))
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hvd.rank0.prom", "hvd.rank1.prom"]  # there at once
    for code, _, errors in end_ranks(processes):
        assert (code, errors) == (0, "")
    for rank in range(2):
        text = (tmp_path / f"hvd.rank{rank}.prom").read_text()
        found = values(text)
        assert found["hvd_operations_total", "allreduce"] == 4
        assert found["hvd_bytes_total", "allreduce"] == 48
        assert found["hvd_steps_total", ""] == 1 and found["hvd_samples_total", ""] == 8
        assert found["hvd_size", ""] == 2 and found["hvd_in_flight", ""] == 0
        assert f'hvd_operations_total{{kind="allreduce",process_set="0",rank="{rank}"}} 4.0' in text


def test_the_file_has_the_last_counts_after_shutdown(tmp_path: Path) -> None:
    code = """
        import numpy as np, hvd
        hvd.init()
        hvd.allreduce(np.ones(3, np.float32), name="w")
        hvd.mark_step(64)
        hvd.shutdown()
    """
    (result,) = end_ranks(start_ranks(1, code, HVD_METRICS=str(tmp_path / "hvd.prom")))
    assert result == (0, "", "")
    found = values((tmp_path / "hvd.rank0.prom").read_text())
    assert found["hvd_operations_total", "allreduce"] == 1 and found["hvd_samples_total", ""] == 64


def answer(url: str, token: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_port() -> None:
    processes = start_ranks(2, WORK, HVD_METRICS="0")
    addresses = []
    for rank, process in enumerate(processes):
        assert process.stderr is not None
        line = process.stderr.readline()
        said = re.fullmatch(
            rf"hvd: rank {rank}: metrics are at (http://127\.0\.0\.1:\d+/metrics), with the bearer token in (\S+)\n", line
        )
        assert said, line
        addresses.append((said[1], Path(said[2])))
    for process, (url, file) in zip(processes, addresses):
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert file.stat().st_mode & 0o777 == 0o600
        token = file.read_text()
        status, text = answer(url, token)
        assert status == 200 and values(text)["hvd_operations_total", "allreduce"] == 4
        for wrong in (None, "", "x", token[:-1], token + "x"):
            status, text = answer(url, wrong)
            assert status == 403 and "Authorization: Bearer TOKEN" in text and token not in text
        assert answer(url.replace("metrics", "other"), token)[0] == 404
    for code, _, errors in end_ranks(processes):
        assert (code, errors) == (0, "")
    assert not any(file.exists() for _, file in addresses)


def test_a_token_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    (process,) = start_ranks(1, WORK, HVD_METRICS="0", HVD_METRICS_TOKEN_FILE=str(file))
    assert process.stderr is not None and process.stdout is not None
    line = process.stderr.readline()
    assert str(file) in line and process.stdout.readline() == "ready\n"
    found = re.search(r"http://\S+/metrics", line)
    assert found and answer(found[0], "secret")[0] == 200
    end_ranks([process])
    assert file.exists()


@pytest.mark.parametrize("case", ["port in use", "no such port", "no folder", "empty token", "no token", "no module"])
def test_what_cannot_work_harms_no_training(case: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (tmp_path / "token").write_text(" \n")
        metrics, token, said = {
            "port in use": (str(port), "", f"port {port} of 127.0.0.1 cannot be used: Address already in use"),
            "no such port": ("65536", "", "65536 is not a port, from 1 to 65535"),
            "no folder": (str(tmp_path / "none" / "x.prom"), "", "No such file or directory"),
            "empty token": ("0", str(tmp_path / "token"), f"HVD_METRICS_TOKEN_FILE={tmp_path / 'token'} is empty"),
            "no token": ("0", str(tmp_path / "none"), "No such file or directory"),
            "no module": ("0", "", "they need prometheus_client: pip install 'hvd[page]'"),
        }[case]
        path = os.environ.get("PYTHONPATH", "")
        if case == "no module":
            (tmp_path / "prometheus_client.py").write_text("raise ModuleNotFoundError(name=__name__)")
            path = f"{tmp_path}:{path}"
        (result,) = end_ranks(start_ranks(1, WORK, HVD_METRICS=metrics, HVD_METRICS_TOKEN_FILE=token, PYTHONPATH=path))
    assert result == (0, "ready\n", f"hvd: rank 0: HVD_METRICS={metrics}: no metrics: {said}; the job goes on without them\n")


DDP = """
    import os, torch, torch.distributed as dist, hvd
    dist.init_process_group("hvd")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    for _ in range(3):
        x = torch.ones(4)
        dist.all_reduce(x)
        optimizer.step()
    work = dist.all_reduce(torch.ones(2, dtype=torch.float64), async_op=True)
    work.wait()
    out = torch.empty(2 * dist.get_world_size())
    dist.all_gather_into_tensor(out, torch.ones(2))
    dist.reduce_scatter_tensor(torch.empty(2), out)
    if dist.get_rank() == 0:
        dist.send(torch.ones(5), 1)
    elif dist.get_rank() == 1:
        dist.recv(torch.ones(5), 0)
    m = hvd.metrics()
    assert (m["rank"], m["size"], m["steps"]) == (dist.get_rank(), dist.get_world_size(), 3), m
    hvd.mark_step(16)  # from now on optimizers mark none
    optimizer.step()
    m = hvd.metrics()
    assert (m["steps"], m["samples"]) == (4, 16), m
    ops = {o["kind"]: o for o in m["operations"]}
    assert {o["process_set"] for o in ops.values()} == {"torch.distributed"}
    assert ops["allreduce"]["operations"] == 4 and ops["allreduce"]["bytes"] == 3 * 16 + 16
    assert ops["allgather"]["bytes"] == 8 and ops["reduce_scatter"]["bytes"] == 8 * dist.get_world_size()
    assert ops["send" if dist.get_rank() == 0 else "recv"]["bytes"] == 20
    other = dist.new_group([1], backend="hvd")
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(7), group=other)
    dist.destroy_process_group()
"""


def execute(code: str, **environment: str) -> None:
    """Two ranks run a program with PyTorch."""
    import torch_programs

    job = Job(2, joined=False, **environment)
    job.run(torch_programs.execute, code=code)
    assert job.stop() == [0, 0]


def test_torch_distributed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    execute(DDP, HVD_METRICS=str(tmp_path / "hvd.prom"), HOROVOD_TIMELINE=str(tmp_path / "t.json"))
    found = values((tmp_path / "hvd.rank1.prom").read_text())
    assert found["hvd_steps_total", ""] == 4
    events = json.loads((tmp_path / "t.json").read_text())
    names = [e.get("name") for e in events if e.get("tid") == 1]
    assert names.count("STEP") == 4
    (group,) = [e["args"] for e in events if e.get("name") == "hvd_process_set"]
    assert group["ranks"] == [1]
    rows = {e["args"]["name"] for e in events if e.get("name") == "process_name"}
    assert f"set {group['set']}: allreduce of float32 [7]" in rows and "allreduce of float32 [4]" in rows
    waits = [e for e in events if e.get("name") == "WAIT"]
    assert waits and {e["args"]["tensor"] for e in waits} >= {"allreduce of float32 [4]"}


def test_steps_within_steps_and_after_errors_are_counted_once() -> None:
    pytest.importorskip("torch")
    execute("""
        import torch, torch.distributed as dist, hvd
        from torch.distributed.optim import ZeroRedundancyOptimizer
        dist.init_process_group("hvd")
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = ZeroRedundancyOptimizer([weight], torch.optim.SGD, lr=0.1)
        for _ in range(4):
            weight.grad = torch.ones(3)
            optimizer.step()
        assert hvd.metrics()["steps"] == 4, hvd.metrics()
        own = torch.optim.SGD([weight], lr=0.1)
        try:
            own.step(lambda: 1 / 0)
        except ZeroDivisionError:
            pass
        own.step()
        assert hvd.metrics()["steps"] == 5, hvd.metrics()
        dist.destroy_process_group()
        dist.init_process_group("hvd")  # the hooks are there already
        own.step()
        assert hvd.metrics()["steps"] == 6, hvd.metrics()
        dist.destroy_process_group()
    """)


def test_the_optimizer_of_hvd_marks_steps() -> None:
    pytest.importorskip("torch")
    execute("""
        import torch, hvd.torch as hvd
        hvd.init()
        model = torch.nn.Linear(2, 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()
        assert hvd.metrics()["steps"] == 3, hvd.metrics()
    """)


def test_a_forked_child_publishes_nothing(tmp_path: Path) -> None:
    code = """
        import os, hvd
        hvd.init()
        if os.fork() == 0:
            try:
                hvd.metrics()
            except hvd.HorovodInternalError as e:
                assert "forked from rank 0" in str(e)
                raise SystemExit(3)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60,
        env=rank_environment(0, 1, "alone", HVD_METRICS=str(tmp_path / "x.prom")),
    )
    assert (result.returncode, result.stderr) == (0, "")
