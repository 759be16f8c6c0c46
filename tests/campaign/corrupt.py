#!/usr/bin/env python3
"""Random words of the memory that ranks share are overwritten while they work.

Each round is one job of 2 to 4 ranks, processes or threads, with collectives of all kinds or with engines, built with
AddressSanitizer and UBSan (corrupt.cpp). A thread of one rank overwrites words of the group's segments, of those of its
parts and of shared blocks: control words, lines, slots, cells, the header; with any value, and with values that are
nearly right. The ranks may get an error, or a wrong result. They never touch memory outside of the mappings, never end
in another way, never wait beyond their deadlines.
"""

import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import common

COUNTERS = ("jobs", "words", "errors", "wrong_sums")
WORKERS = 4  # jobs at the same time, which wait for deadlines most of their time


class Runner:
    """A program that runs jobs."""

    def __init__(self, program):
        self.place = common.Place().__enter__()
        self.process = subprocess.Popen(
            [str(program)], env=self.place.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            errors="replace",
        )  # fmt: skip

    def run(self, seed):
        """Words that were overwritten, errors, wrong sums, and what should not have been."""
        self.process.stdin.write(f"{seed % 2**32} {self.place.folder}\n")
        self.process.stdin.flush()
        words, errors, wrong, text = self.process.stdout.readline().rstrip("\n").split("\t")
        left = self.place.files()
        self.place.clear()
        return int(words), int(errors), int(wrong), text, left

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.place.__exit__()


def summary(text):
    """What a sanitizer has said, without the frames that every report has."""
    frames = re.findall(r"#\d+ 0x\w+ in ([^|]*?)(?:\(.*?\))? [^|]*?((?:include|tests)/[^|]*?:\d+)", text)
    where = " < ".join(f"{name[-50:]} {place}" for name, place in frames[:4])
    return f"{text[:400]} ... {where}" if where else text[:1500]


def work(part, program, seeds, lock):
    runner = Runner(program)
    try:
        while True:
            with lock:
                seed = next(seeds, None)
            if seed is None:
                return
            words, errors, wrong, text, left = runner.run(seed)
            with lock:
                part.count("jobs")
                part.count("words", words)
                part.count("errors", errors)
                part.count("wrong_sums", wrong)
                if text:
                    part.find(summary(text), seed)
                if left:
                    # Whose words are overwritten may not know any more what to remove: the next job of the user does.
                    part.more["left"] = part.more.get("left", 0) + len(left)
    finally:
        runner.close()


def main():
    part = common.Part("corrupt", __doc__, COUNTERS)
    options = part.parse()
    # With sanitizers of its own, whatever the build folder's are: see meson.build.
    program = part.program("campaign_corrupt")
    seeds, lock = part.rounds(), threading.Lock()
    workers = 1 if options.repeat else WORKERS
    with ThreadPoolExecutor(workers) as pool:
        for worker in [pool.submit(work, part, program, seeds, lock) for _ in range(workers)]:
            worker.result()
    return part.close()


if __name__ == "__main__":
    sys.exit(main())
