#!/usr/bin/env python3
# tests/model/check.py: has spin search every state of the protocol models, and the broken variants for their faults.
#
# The same model gives the same result, after minutes. So searched.json has a hash of what was searched, and of the headers
# that the model is about; while they stay the same, nothing is searched. When they change the check fails until somebody
# has compared model and header and recorded a new search. To search and pass would be no answer: whether a model still
# says what its header does, no search tells; and nobody reads what a test that passes prints.
import argparse
import hashlib
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
INCLUDE = HERE.parents[1] / "include"
SEARCHED = HERE / "searched.json"
MEMORY_MIB = 1000
DEPTH = 200_000
SECONDS = 500

# What a search must end in.
HOLDS = "holds"        # every state seen, no error
DATA = "wrong data"    # an assertion about mem[] fails
STUCK = "stuck"        # a state that nobody can leave and that is not the end
SHARED = "shared line"  # an assertion about readers[] fails: a rank stores where others have read
# Claims of start.pml, each with a flag by this name; where a fault is planted the other claims are switched off.
VAIN, MIXED, STAYS, REMOVED, FOREIGN, INNOCENT = CLAIMS = [
  "stuck in vain", "mixed", "stays", "removed", "foreign", "innocent"]

# Bits of staging.pml's KINDS.
ALLREDUCE, REDUCE, ALLGATHER, FROM, TO, ALLTOALL = 2, 4 + 8, 16, 32 + 64, 128, 256
EVERY = 510

# (model, what is checked, definitions, expected result). With COLLAPSE a search takes half the memory and half as long
# again.
CASES = [
  ("lines", "2 ranks, endless", "P=2 EXCHANGES=0", HOLDS),
  ("lines", "2 ranks, endless, two lines", "P=2 EXCHANGES=0 LINES=2 WORDS=1", HOLDS),
  ("lines", "3 ranks, 6 exchanges", "P=3", HOLDS),
  ("lines", "2 ranks, 6 exchanges, weak memory", "P=2 WORDS=1 WEAK", HOLDS),
  ("lines", "2 ranks, 4 exchanges, weak, two words", "P=2 EXCHANGES=4 WEAK", HOLDS),
  ("lines", "2 ranks may be 4 exchanges apart", "P=2 EXCHANGES=12 WINDOW=4", HOLDS),
  ("lines", "2 ranks, a line's writer read it last", "OWN KINDS=2 EXCHANGES=10", HOLDS),
  ("lines", "sequence word before payload", "SEQ_FIRST", DATA),
  ("lines", "sequence word not a release", "SEQ_RELAXED WEAK", DATA),
  ("lines", "payload read before sequence word", "LOAD_FIRST", DATA),
  ("lines", "no parity", "ONE_BUFFER", DATA),
  ("lines", "known not asked", "NO_KNOWN", DATA),
  ("lines", "known not asked: sequence word lost", "NO_KNOWN", STUCK),
  ("lines", "window of 3 exchanges", "WINDOW=3 P=3", DATA),
  ("lines", "2 ranks, window of 5 exchanges", "WINDOW=5 EXCHANGES=12", DATA),
  ("lines", "known set to s instead of s - 1", "KNOWN_S P=3", DATA),
  ("lines", "done before reading", "DONE_FIRST P=3", DATA),
  ("lines", "done not a release", "DONE_RELAXED WEAK WORDS=1 EXCHANGES=5", DATA),
  ("lines", "turns counted by writers only", "TURN_ON_WRITE", STUCK),
  ("lines", "windows change every time, for speed", "TURN=1 OWN KINDS=2", SHARED),
  ("lines", "windows never change, for speed", "TURN=0 OWN KINDS=2", SHARED),

  ("staging", "allreduce, 2 ranks, 5 + 4 chunks", f"P=2 KINDS={ALLREDUCE}", HOLDS),
  ("staging", "allreduce, 3 ranks, 5 + 4 chunks", f"P=3 KINDS={ALLREDUCE}", HOLDS),
  ("staging", "all pairs of operations, 2 ranks", f"P=2 KINDS={EVERY} NOT_ALWAYS", HOLDS),
  ("staging", "all pairs of operations, 3 ranks", f"P=3 N0=4 N1=2 KINDS={EVERY} COLLAPSE", HOLDS),
  ("staging", "three operations of a chunk, 2 ranks", f"P=2 N0=1 N1=1 N2=1 KINDS={EVERY}", HOLDS),
  ("staging", "three operations, a ring of 4, 2 ranks", f"P=2 RING=4 N0=2 N1=1 N2=2 KINDS={EVERY}", HOLDS),
  ("staging", "three operations of a chunk, 3 ranks", f"P=3 N0=1 N1=1 N2=1 KINDS={ALLGATHER + FROM + TO} COLLAPSE", HOLDS),
  ("staging", "chunks of other sizes, 2 ranks", f"P=2 RING=6 N0=2 W0=1 N1=1 W1=2 N2=3 W2=1 KINDS={EVERY}", HOLDS),
  ("staging", "allreduce, 2 ranks, 4 + 2, weak memory", f"P=2 N0=4 N1=2 KINDS={ALLREDUCE} WEAK DEPTH=6", HOLDS),
  ("staging", "pairs, 2 ranks, 4 + 1, weak memory", f"P=2 N0=4 N1=1 KINDS={EVERY} WEAK DEPTH=6 COLLAPSE", HOLDS),
  ("staging", "three of a chunk, 2 ranks, weak memory",
   f"P=2 N0=1 N1=1 N2=1 KINDS={ALLGATHER + FROM} WEAK DEPTH=6", HOLDS),
  ("staging", "2 ranks, a slot's writer read it last",
   f"P=2 N0=6 N1=3 KINDS={ALLREDUCE + REDUCE + ALLGATHER + ALLTOALL} OWN SAME", HOLDS),
  ("staging", "readers that touch, 2 ranks", f"P=2 KINDS={FROM + TO} TOUCH NOT_ALWAYS", HOLDS),
  ("staging", "readers that touch, 3 ranks", f"P=3 N0=4 N1=2 KINDS={FROM + TO} TOUCH", HOLDS),
  ("staging", "readers that touch, 2 ranks, weak memory", f"P=2 N0=4 N1=1 KINDS={FROM + TO} TOUCH WEAK DEPTH=6", HOLDS),
  ("staging", "2 ranks, readers that touch, for speed", f"OWN SAME KINDS={FROM + TO} TOUCH", HOLDS),
  ("staging", "nobody touches, for speed", f"OWN SAME KINDS={FROM + TO}", SHARED),
  ("staging", "touched after it is said", f"REDUCED_FIRST TOUCH KINDS={FROM}", DATA),
  ("staging", "two shots, places for two chunks", f"RING=2 KINDS={ALLREDUCE}", DATA),
  ("staging", "reduce, places for two chunks", f"RING=2 KINDS={REDUCE}", DATA),
  ("staging", "a chunk as large as the ring", f"RING=2 W0=2 N0=2 KINDS={ALLTOALL}", STUCK),
  ("staging", "staged before the slots", f"STAGED_FIRST KINDS={ALLREDUCE}", DATA),
  ("staging", "reduced before the result", f"REDUCED_FIRST KINDS={ALLREDUCE}", DATA),
  ("staging", "staged not a release", f"STAGED_RELAXED KINDS={ALLREDUCE} WEAK DEPTH=6", DATA),
  ("staging", "reduced not a release", f"REDUCED_RELAXED KINDS={ALLREDUCE} WEAK DEPTH=6", DATA),
  ("staging", "reduce without wait in stage", f"NO_STAGE_WAIT KINDS={REDUCE}", DATA),
  ("staging", "broadcast without wait in stage", f"NO_STAGE_WAIT KINDS={FROM}", DATA),
  ("staging", "gather without wait in stage", f"NO_STAGE_WAIT KINDS={TO}", DATA),
  ("staging", "allgather without wait in stage", f"P=3 NO_STAGE_WAIT KINDS={ALLGATHER}", DATA),
  ("staging", "no mailboxes, and no wait in stage", f"FIXED NO_STAGE_WAIT KINDS={ALLTOALL}", DATA),
  ("staging", "copied out before reduced", f"NO_REDUCED_WAIT KINDS={ALLREDUCE}", DATA),
  ("staging", "copied out before reduced, at a root", f"NO_REDUCED_WAIT KINDS={REDUCE}", DATA),
  ("staging", "mailboxes swapped by writers only", f"READERS_STAY KINDS={ALLTOALL}", DATA),
  ("staging", "mailboxes swapped by readers only", f"WRITERS_STAY KINDS={ALLTOALL}", DATA),
  ("staging", "windows changed by writers only", f"P=3 READERS_STAY KINDS={ALLGATHER}", DATA),
  ("staging", "mailboxes not swapped, for speed", f"FIXED OWN SAME KINDS={ALLTOALL}", SHARED),
  ("staging", "windows not changed, for speed", f"FIXED OWN SAME KINDS={ALLGATHER}", SHARED),
  ("staging", "no rendezvous", f"NO_RENDEZVOUS KINDS={EVERY}", DATA),
  ("staging", "waits that reach into the last operation", f"WAIT_ALWAYS KINDS={EVERY}", STUCK),
  ("staging", "early without asking for room", f"EARLY_ALWAYS N0=1 N1=3 N2=1 KINDS={EVERY}", DATA),
  ("staging", "early, the last operation thought over", f"EARLY_LAST N0=3 N1=1 KINDS={EVERY}", DATA),
  ("staging", "early, and told before it is done", f"EARLY_LATE KINDS={EVERY}", DATA),
  ("staging", "who was early is not asked", f"EARLY_ASSUMED KINDS={EVERY}", DATA),

  ("p2p", "1 rank, with itself", "P=1", HOLDS),
  ("p2p", "2 ranks", "P=2", HOLDS),
  ("p2p", "3 ranks, a ring", "P=3", HOLDS),
  ("p2p", "2 ranks, weak memory", "P=2 WEAK", HOLDS),
  ("p2p", "stamp before the slot", "STAMP_FIRST", DATA),
  ("p2p", "stamp not a release", "STAMP_RELAXED WEAK", DATA),
  ("p2p", "taken before reading", "TAKEN_FIRST FRAGMENTS=4", DATA),
  ("p2p", "room not asked", "NO_ROOM_CHECK", DATA),
  ("p2p", "send all, then receive", "SEND_ALL_FIRST", STUCK),

  ("waiting", "1 waiter", "P=2", HOLDS),
  ("waiting", "2 waiters", "P=3", HOLDS),
  ("waiting", "2 waiters, fence, no time limit", "P=3 FENCE NO_TIMEOUT", HOLDS),
  ("waiting", "no time limit", "P=2 NO_TIMEOUT", STUCK),
  ("waiting", "fence, no time limit, rings read late", "P=2 FENCE NO_TIMEOUT LATE_RINGS", STUCK),

  ("start", "2 ranks, 1 killed, another job sweeps", "SELF", HOLDS),
  ("start", "3 ranks, 1 killed", "P=3 SELF SWEEPS=0 TRIES=0", HOLDS),
  ("start", "3 ranks, 1 killed, a bare name", "P=3 SWEEPS=0 TRIES=0", HOLDS),
  ("start", "2 ranks, 2 killed, deadlines at any time", "HASTE KILLS=2 SWEEPS=0 TRIES=0", HOLDS),
  ("start", "a stale segment, 1 killed", "SELF START=STALE SWEEPS=0", HOLDS),
  ("start", "a stale segment, another job sweeps", "SELF START=STALE KILLS=0", HOLDS),
  ("start", "a foreign segment, 1 killed", "SELF START=ALIEN SWEEPS=0", HOLDS),
  ("start", "an earlier group of the same processes", "START=EARLIER SWEEPS=0 TRIES=0", HOLDS),
  ("start", "two launches, a second rank 0, 1 killed", "SECOND=1 SWEEPS=0 TRIES=0", HOLDS),
  ("start", "two launches, a second rank 1, 1 killed", "SECOND=2 SWEEPS=0 TRIES=0", HOLDS),
  ("start", "a part of a group, 1 killed, a sweep", "PART SELF", HOLDS),
  ("start", "a part of 3 ranks, 1 killed", "PART SELF P=3 SWEEPS=0 TRIES=0", HOLDS),
  ("start", "fork_run, 1 killed, another job sweeps", "LAUNCHED SELF", HOLDS),
  ("start", "locked after the name was given", "LOCK_LATE SELF KILLS=0", REMOVED),
  ("start", "the sweep does not ask for locks", "SWEEP_BLIND SELF KILLS=0", REMOVED),
  ("start", "another segment's name removed", "NO_INODE_CHECK SELF START=STALE KILLS=0", REMOVED),
  ("start", "names removed without a lock", "NO_NAME_LOCK SELF START=STALE KILLS=0 SWEEPS=0", REMOVED),
  ("start", "whoever finds that lock held goes on", "SKIP_LOCKED SELF SWEEPS=0", STAYS),
  ("start", "who gives up leaves the name", "NAME_FORGOTTEN SELF SWEEPS=0", STAYS),
  ("start", "no lock of the creator", "NO_CREATOR_LOCK SELF KILLS=0 SWEEPS=0", INNOCENT),
  ("start", "entered before it has its lock", "ENTERED_FIRST SELF KILLS=0 SWEEPS=0", INNOCENT),
  ("start", "two processes in one place", "NO_PLACE_LOCK SECOND=1 KILLS=0 SWEEPS=0 TRIES=0", INNOCENT),
  ("start", "who leaves does not say so", "NO_LEFT SELF KILLS=0 SWEEPS=0", INNOCENT),
  ("start", "ready not asked again", "NO_SECOND_LOOK SELF KILLS=0 SWEEPS=0", INNOCENT),
  ("start", "a stale segment taken for this launch's", "BLAME_AT_ONCE SELF START=STALE KILLS=0 SWEEPS=0", INNOCENT),
  ("start", "a dead group of others for this launch's", "BLAME_OTHERS SECOND=2 KILLS=0 SWEEPS=0", INNOCENT),
  ("start", "one's earlier self taken for another", "SAME_PROCESS START=EARLIER KILLS=0 SWEEPS=0", INNOCENT),
  ("start", "entered never said", "NO_ENTERED SELF SWEEPS=0", VAIN),
  ("start", "the name removed before all are ready", "UNLINK_EARLY SELF KILLS=0 SWEEPS=0", VAIN),
  ("start", "who gives up does not linger", "NO_LINGER P=3 SWEEPS=0 SELF TRIES=0", VAIN),
  ("start", "who gives up removes the name first", "LEAVE_AT_ONCE P=3 SWEEPS=0 TRIES=0", VAIN),
  ("start", "a launcher that does not tell", "NO_REPORT SELF LAUNCHED SWEEPS=0", VAIN),
  ("start", "a part that does not watch its group", "NO_WATCH PART SELF SWEEPS=0", VAIN),
  ("start", "nonce not compared", "NO_NONCE SELF START=ALIEN KILLS=0 SWEEPS=0", FOREIGN),
  ("start", "the creator's lock not asked for", "TAKE_STALE SELF START=STALE KILLS=0 SWEEPS=0", FOREIGN),
  ("start", "a name for a half-made segment", "HALF_MADE SELF KILLS=0 SWEEPS=0", FOREIGN),
  ("start", "second claims not looked for", "NO_CLAIM_FOUND SECOND=2 KILLS=0 SWEEPS=0", MIXED),
  ("start", "second claims not told", "CLAIM_UNSAID SECOND=2 KILLS=0 SWEEPS=0", MIXED),
  ("start", "operations that do not look", "NO_LOOK SECOND=2 KILLS=0 SWEEPS=0", MIXED),
  ("start", "not promised: no mixture while none comes", "UNNOTICED SECOND=3 KILLS=0 SWEEPS=0 TRIES=0", MIXED),

  ("survivors", "2 ranks, 1 killed", "P=2 KILLS=1", HOLDS),
  ("survivors", "3 ranks, 1 killed", "P=3 KILLS=1", HOLDS),
  ("survivors", "each rank decides whether it has a group", "EACH_FOR_ITSELF KILLS=1", STUCK),
  ("survivors", "the number before the members", "NUMBER_FIRST", MIXED),
  ("survivors", "ready for any round", "ANY_ROUND", MIXED),
  ("survivors", "the number set without a look", "BLIND", MIXED),
]
DEEP = [
  ("survivors", "3 ranks, 2 killed", "P=3 KILLS=2", HOLDS),
  ("start", "fork_run, 3 ranks, 1 killed", "LAUNCHED SELF P=3 SWEEPS=0 TRIES=0", HOLDS),
  ("start", "two whole launches of a bare name", "SECOND=3 KILLS=0 SWEEPS=0 TRIES=0", HOLDS),
  ("start", "a stale segment, 1 killed, a sweep", "SELF START=STALE", HOLDS),
  ("start", "an earlier group, 1 killed, a sweep", "START=EARLIER", HOLDS),
  ("start", "3 ranks, a second rank 1", "P=3 SECOND=2 KILLS=0 SWEEPS=0 TRIES=0", HOLDS),
  ("lines", "windows may change every time", "P=3 TURN=1 WORDS=1", HOLDS),
  ("staging", "3 ranks, a slot's writer read it last", f"P=3 KINDS={ALLREDUCE + REDUCE + ALLTOALL} OWN SAME", HOLDS),
  ("staging", "all pairs of operations, 3 ranks, 5 + 4", f"P=3 KINDS={EVERY}", HOLDS),
  ("lines", "3 ranks, endless", "P=3 EXCHANGES=0 WORDS=1", HOLDS),
  ("lines", "3 ranks, 3 exchanges, weak memory", "P=3 EXCHANGES=3 WORDS=1 WEAK", HOLDS),
  ("staging", "pairs, 2 ranks, 4 + 4, weak memory", f"P=2 N0=4 KINDS={EVERY} WEAK DEPTH=6", HOLDS),
]


class Search:
  """One run of spin, compiler and verifier in `folder`."""

  def __init__(self, model, definitions, expected, folder, deep=False):
    source = HERE / f"{model}.pml"
    self.arguments = [f"-D{d}" for d in definitions.split() + ([] if expected == HOLDS else ["BROKEN"])]
    if expected in CLAIMS:
      self.arguments += [f"-D{claim.split()[0]}=1" for claim in CLAIMS if claim != expected]
    self.arguments += [str(source)]
    self.folder = folder
    self.trail = f"{model}.pml.trail"
    temporal = model == "waiting" and expected == HOLDS
    generate = ["spin", "-a"] + self.arguments
    # -O2 would take longer than it saves; a search for a planted fault is over before any of it has paid.
    compile_ = [compiler(), "-O1" if expected == HOLDS else "-O0", "-w",
                f"-DMEMLIM={MEMORY_MIB * (8 if deep else 1)}", "-o", "pan", "pan.c"]
    compile_ += [] if temporal else ["-DSAFETY"]
    compile_ += ["-DCOLLAPSE"] if deep or "COLLAPSE" in definitions else []
    # -E: look for assertions that fail only; -A: for stuck states only, also past an assertion that fails
    mode = ["-a", "-f"] if temporal else {HOLDS: [], STUCK: ["-A"]}.get(expected, ["-E"])
    depth = DEPTH * (100 if deep else 1)
    for command in generate, compile_:
      self.call(command)
    self.output = self.call(["./pan", f"-m{depth}", "-n"] + mode, check=False)
    self.states = int(float(self.find(r"([\d.e+]+) states, stored") or 0))
    self.errors = self.find(r"errors: (\d+)")
    self.message = self.find(r"pan:\d+: (.*)") or ""
    self.complete = (self.errors is not None and "Search not completed" not in self.output
                     and "max search depth too small" not in self.output and "MEMLIM" not in self.output)

  def call(self, command, check=True):
    done = subprocess.run(command, cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=SECONDS if command[0] == "./pan" else 60)
    if check and done.returncode != 0:
      raise RuntimeError(f"{' '.join(command)}: {done.stdout}")
    return done.stdout

  def find(self, pattern):
    match = re.search(pattern, self.output)
    return match and match.group(1)

  def found(self):
    if self.errors == "0":
      return HOLDS if self.complete else "not all states seen"
    if re.match(r"assertion violated \(mem\[", self.message):
      return DATA
    if re.match(r"assertion violated \(+readers\[", self.message):
      return SHARED
    for claim in CLAIMS:
      if re.search(rf"^assertion violated .*\|\| ?{claim.split()[0]}\)", self.message):
        return claim
    if "invalid end state" in self.message:
      return STUCK
    return self.message or self.output[-500:]

  def counterexample(self, lines):
    steps = self.call(["spin", "-t", "-k", self.trail, "-p", "-g"] + self.arguments, check=False).splitlines()
    return "\n".join(steps[-lines:])


def files_of(model):
  """The text of a model and of what it includes, and the headers that these name, without their comments."""
  own = (HERE / f"{model}.pml").read_text()
  texts = [own] + [(HERE / name).read_text() for name in re.findall(r'^#include "(.+)"', own, re.MULTILINE)]
  headers = sorted({name for text in texts for name in re.findall(r"hvd/[\w/]+\.hpp", text)})
  if not headers:
    raise SystemExit(f"{model}.pml names no header: say in its first comment which ones it models")
  return texts, {name: re.sub(r"//.*", "", (INCLUDE / name).read_text()).split() for name in headers}


def hash_of(model):
  """Of all on which the result of a model's searches depends, and of its headers."""
  cases = [case for case in CASES if case[0] == model]
  everything = [*files_of(model), cases, inspect.getsource(Search), DEPTH, MEMORY_MIB]
  return hashlib.sha256(json.dumps(everything).encode()).hexdigest()


def searched():
  return json.loads(SEARCHED.read_text()) if SEARCHED.exists() else {}


def look_up(models):
  """The exit code: 0 if these models were searched as they are now."""
  known = searched()
  old = [model for model in models if known.get(model) != hash_of(model)]
  for model in models:
    if model not in old:
      print(f"{model}: searched before with these sources")
      continue
    headers = ", ".join(files_of(model)[1])
    print(f"{model}: FAILED: the model, its cases, or what it models ({headers}) has changed since it was last searched")
  if old:
    print(f"See that the model still says what the headers do, then: python3 {sys.argv[0]} --record {' '.join(old)}")
  return 1 if old else 0


def compiler():
  for name in os.environ.get("CC", "").split()[:1] + ["cc", "gcc", "clang"]:
    if shutil.which(name):
      return name
  return None


def main():
  parser = argparse.ArgumentParser(description="Check the models of the shared-memory protocol with spin.")
  parser.add_argument("models", nargs="*", help="lines, staging, p2p, waiting, start, survivors; default: all")
  parser.add_argument("--search", action="store_true", help="search, whether that was done before or not")
  parser.add_argument("--record", action="store_true", help="search, and record it in searched.json if all is as expected")
  parser.add_argument("--deep", action="store_true", help="larger searches as well: up to 8 GB, minutes")
  parser.add_argument("--only", default="", help="only checks whose description contains this")
  parser.add_argument("--trace", type=int, default=0, metavar="N", help="show the last N steps to each fault found")
  options = parser.parse_args()
  unknown = set(options.models) - {case[0] for case in CASES}
  if unknown:
    parser.error(f"no such model: {' '.join(sorted(unknown))}")
  if options.record and options.only:
    parser.error("--record needs all searches of a model; leave out --only")
  models = options.models or list(dict.fromkeys(case[0] for case in CASES))
  if not (options.search or options.record or options.deep or options.only or options.trace):
    return look_up(models)
  before = {model: hash_of(model) for model in models}  # what is changed during the search is not what was searched
  if shutil.which("spin") is None:
    print("SKIP: model: spin is not installed")
    return 77
  if compiler() is None:
    print("SKIP: model: no C compiler for the verifier that spin writes")
    return 77

  failed = ran = 0
  begin = time.monotonic()
  for case in CASES + (DEEP if options.deep else []):
    model, what, definitions, expected = case
    if model not in models or options.only not in what:
      continue
    ran += 1
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hvd-model-") as folder:
      try:
        search = Search(model, definitions, expected, folder, case in DEEP)
      except (RuntimeError, subprocess.TimeoutExpired) as failure:
        failed += 1
        print(f"{model:8}{what:44} FAILED: {failure}", flush=True)
        continue
      found = search.found()
      good = found == expected
      failed += not good
      seconds = time.monotonic() - start
      print(f"{model:8}{what:44}{search.states:>10} states {search.errors or '?':>2} errors {seconds:6.1f} s  {found}"
            + ("" if good else f"   FAILED: expected {expected}"), flush=True)
      if search.errors not in ("0", None) and (options.trace or not good):
        print(search.counterexample(options.trace or 80), flush=True)
  print(f"{ran} searches, {failed} failed, {time.monotonic() - begin:.0f} s")
  if options.record and not failed:
    SEARCHED.write_text(json.dumps({**searched(), **before}, indent=2, sort_keys=True) + "\n")
  return 1 if failed or not ran else 0


if __name__ == "__main__":
  sys.exit(main())
