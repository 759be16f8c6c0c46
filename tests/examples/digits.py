#!/usr/bin/env python3
"""Runs the trainer of examples/digits as a user would, and as a user would not.

usage: digits.py TRAIN_DIGITS DIGITS_CSV [CLASS...]   (all classes below, unless some are named)
"""

import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zlib
from pathlib import Path

PROGRAM = ""
CSV = Path()
# Only what a test sets; a launcher's variables would turn the program into one rank of somebody else's job.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "HVD_"))}


def run(*arguments, env=None, timeout=40):
    return subprocess.run(
        [PROGRAM, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, **(env or {})},
        timeout=timeout,
    )


def losses(path):
    return {int(epoch): float(loss) for epoch, loss in (line.split() for line in path.read_text().splitlines())}


def accuracy(output):
    return float(re.search(r"test accuracy ([\d.]+) %", output).group(1))


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def train(self, *arguments, **keywords):
        """A run that must succeed and say nothing on stderr."""
        result = run(*arguments, **keywords)
        self.assertEqual((result.returncode, result.stderr), (0, ""), f"{arguments}\n{result.stdout}")
        return result.stdout

    def refused(self, file, *words, ranks=2, options=()):
        """A run that must fail because of `file`: every rank says so, with the file and all of `words`."""
        result = run("-n", ranks, "--epochs", 1, *options)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        for rank in range(ranks):
            about = [line for line in result.stderr.splitlines() if f"rank {rank}" in line]
            self.assertTrue(about, f"rank {rank} says nothing:\n{result.stderr}")
            for word in (str(file), *words):
                self.assertIn(word, about[0])

    def assertClose(self, one, other, relative=1e-4):
        self.assertEqual(one.keys(), other.keys())
        for epoch in one:
            self.assertLess(abs(one[epoch] - other[epoch]), relative * other[epoch], f"epoch {epoch}")


class Curves(Case):
    """The same global batch gives the same losses, whatever the number of ranks."""

    def curve(self, ranks, *arguments):
        file = self.folder / f"loss-{ranks}"
        output = self.train("-n", ranks, "--check-bits", "--loss-file", file, *arguments)
        return losses(file), output

    def check(self, epochs, *arguments):
        alone, output = self.curve(1, "--epochs", epochs, *arguments)
        self.assertEqual(list(alone), list(range(1, epochs + 1)))
        for ranks in (2, 3, 4):
            with self.subTest(ranks=ranks):
                several, several_output = self.curve(ranks, "--epochs", epochs, *arguments)
                self.assertClose(several, alone)
                self.assertLess(abs(accuracy(several_output) - accuracy(output)), 0.6)
        return alone, output

    def test_same_for_all_numbers_of_ranks(self):
        curve, output = self.check(40, "--global-batch", 64, "--lr", 0.2)
        self.assertLess(curve[40], curve[1] / 10)
        self.assertGreaterEqual(accuracy(output), 95)

    def test_batch_that_no_number_of_ranks_divides(self):
        self.check(3, "--global-batch", 37)

    def test_fewer_images_a_step_than_ranks(self):
        self.check(1, "--global-batch", 3, "--lr", 0.01)

    def test_one_step_an_epoch(self):
        self.check(3, "--global-batch", 1000000)

    def test_seeds_differ(self):
        one, _ = self.curve(2, "--epochs", 1, "--seed", 1)
        other, _ = self.curve(2, "--epochs", 1, "--seed", 2)
        self.assertNotEqual(one, other)

    def test_defaults(self):
        for ranks, rate in ((1, "0.05"), (2, "0.1"), (4, "0.2")):
            with self.subTest(ranks=ranks):
                output = self.train("-n", ranks, "--check-bits")
                self.assertGreaterEqual(accuracy(output), 95)
                self.assertIn(f"{16 * ranks} images a step, learning rate {rate}\n", output)
                self.assertEqual(len(re.findall(r"^epoch +\d+  loss [\d.]+ +\d+ images/s .* %$", output, re.M)), 60)


class Engine(Case):
    """Layers summed one by one while the backward pass goes on give what one sum at its end gives."""

    def test_same_bits_and_a_timeline(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                files = [self.folder / f"{name}-{ranks}" for name in ("whole", "layers", "timeline")]
                self.train("-n", ranks, "--epochs", 3, "--loss-file", files[0])
                timeline = {"HOROVOD_TIMELINE": str(files[2])}
                self.train("-n", ranks, "--epochs", 3, "--check-bits", "--loss-file", files[1], "--engine", env=timeline)
                self.assertEqual(files[0].read_text(), files[1].read_text())
                events = json.loads(files[2].read_text())
                shown = [event["args"]["name"] for event in events if event.get("name") == "process_name"]
                for part in ("output.weights", "output.bias", "hidden.weights", "hidden.bias"):
                    self.assertIn(part, shown)
                names = {event.get("name") for event in events}
                self.assertLessEqual({"NEGOTIATE_ALLREDUCE", "ALLREDUCE"}, names)


class Checkpoints(Case):
    def setUp(self):
        super().setUp()
        self.file = self.folder / "state"

    def write(self, epochs=1, ranks=1):
        self.train("-n", ranks, "--epochs", epochs, "--global-batch", 32, "--checkpoint", self.file)
        self.assertEqual([path.name for path in self.folder.glob("state*")], ["state"])
        return self.file.read_bytes()

    def test_resumed_run_goes_on_as_if_never_stopped(self):
        arguments = ["--epochs", 8, "--global-batch", 32, "--check-bits"]
        whole, second = self.folder / "whole", self.folder / "second"
        output = self.train("-n", 2, "--loss-file", whole, *arguments)
        self.write(epochs=5, ranks=2)
        # Another seed, to see that the one of the checkpoint counts.
        resumed = self.train("-n", 2, "--loss-file", second, "--resume", self.file, "--seed", 9, *arguments)
        expected = {epoch: loss for epoch, loss in losses(whole).items() if epoch > 5}
        self.assertEqual(losses(second), expected)
        self.assertEqual(accuracy(resumed), accuracy(output))
        self.train("-n", 3, "--loss-file", second, "--resume", self.file, *arguments)
        self.assertClose(losses(second), expected)

    def test_finished_run_is_only_evaluated(self):
        self.write(epochs=3)
        output = self.train("-n", 2, "--epochs", 3, "--resume", self.file)
        self.assertNotIn("epoch ", output)
        self.assertGreater(accuracy(output), 50)

    def test_altered_bits(self):
        good = self.write()
        half = (len(good) - 44) // 2
        weights, velocity = 44, 44 + half
        for position, section in (
            (3, "byte 0: this is not a checkpoint"),
            (8, "byte 0: the CRC-32 of the header in bytes 0 to 43"),
            (13, "byte 0: the CRC-32 of the header"),
            (43, "byte 0: the CRC-32 of the header"),
            (weights, f"byte {weights}: the CRC-32 of the weights in bytes {weights} to {velocity - 1}"),
            (weights + 7001, f"byte {weights}: the CRC-32 of the weights"),
            (velocity - 1, f"byte {weights}: the CRC-32 of the weights"),
            (velocity, f"byte {velocity}: the CRC-32 of the velocity in bytes {velocity} to {len(good) - 1}"),
            (len(good) - 1, f"byte {velocity}: the CRC-32 of the velocity"),
        ):
            with self.subTest(position=position):
                bad = bytearray(good)
                bad[position] ^= 0x10
                self.file.write_bytes(bad)
                self.refused(self.file, section, options=["--resume", self.file])

    def test_wrong_length(self):
        good = self.write()
        for length in (8, 43, 44, 5000, len(good) - 1):
            with self.subTest(length=length):
                self.file.write_bytes(good[:length])
                self.refused(self.file, f"byte {length}: the file ends", options=["--resume", self.file])
        self.file.write_bytes(b"")
        self.refused(self.file, "byte 0", options=["--resume", self.file])
        self.file.write_bytes(good + b"x")
        self.refused(self.file, f"byte {len(good)}: the file goes on", options=["--resume", self.file])

    def header(self, good, position, number):
        head = bytearray(good[:40])
        head[position : position + 4] = struct.pack("<I", number)
        return bytes(head) + struct.pack("<I", zlib.crc32(head)) + good[44:]

    def test_other_version_or_shape(self):
        good = self.write()
        self.file.write_bytes(self.header(good, 8, 2))
        self.refused(self.file, "byte 8: the version is 2", options=["--resume", self.file])
        self.file.write_bytes(self.header(good, 16, 4000000000))
        self.refused(self.file, "byte 12", "64-4000000000-10", "64-64-10", options=["--resume", self.file])

    def test_unreadable_and_unwritable(self):
        missing = self.folder / "none" / "state"
        self.refused(missing, "No such file", options=["--resume", missing])
        self.refused(self.folder, "directory", options=["--resume", self.folder])
        self.refused(missing, "No such file", options=["--checkpoint", missing])
        self.refused(missing, "No such file", options=["--loss-file", missing])

    def test_failed_write_leaves_the_old_one(self):
        good = self.write()
        Path(f"{self.file}.tmp").mkdir()
        self.refused(self.file, "directory", options=["--checkpoint", self.file])
        self.assertEqual(self.file.read_bytes(), good)


class BadFiles(Case):
    def setUp(self):
        super().setUp()
        self.file = self.folder / "digits.csv"
        self.lines = CSV.read_text().splitlines(keepends=True)

    def check(self, text, *words):
        self.file.write_text(text)
        self.refused(self.file, *words, options=["--data", self.file])

    def changed(self, number, line):
        return "".join([*self.lines[: number - 1], line, *self.lines[number:]])

    def offset(self, number):
        return sum(map(len, self.lines[: number - 1]))

    def test_value(self):
        for bad in ("17", "-1", "1.5", "x", "", " 3", "99999999999999999999"):
            with self.subTest(bad=bad):
                values = self.lines[6].split(",")
                begin = len(",".join(values[:5])) + 1
                values[5] = bad
                where = f"line 7, value 6 (byte {self.offset(7) + begin}): '{bad[:20]}"
                self.check(self.changed(7, ",".join(values)), where, "from 0 to 16")

    def test_label(self):
        line = self.lines[1796].rsplit(",", 1)[0] + ",10\n"
        self.check(self.changed(1797, line), "line 1797, value 65", "'10' is not a digit", "0 to 9")

    def test_columns(self):
        where = f"line 3 (byte {self.offset(3)}): "
        self.check(self.changed(3, "1," + self.lines[2]), where + "66 values, expected 65")
        self.check(self.changed(3, self.lines[2].split(",", 1)[1]), where + "64 values, expected 65")
        self.check(self.changed(3, "\n"), where + "1 value, expected 65")

    def test_truncated(self):
        text = "".join(self.lines)
        self.check(text[: self.offset(900) + 30], f"line 900 (byte {self.offset(900)}): the file ends within")
        self.check(text[: self.offset(900)], "line 900", "ends after 898 images, but line 1 announces 1797")
        self.check(text + self.lines[-1], "ends after 1798 images, but line 1 announces 1797")
        self.check("", "line 1 (byte 0): the file ends after 0 images")

    def test_altered_but_plausible(self):
        self.check(self.changed(9, self.lines[9]), "lines 2 to 1798", "CRC-32")

    def test_first_line(self):
        self.check(self.changed(1, "# hello\n"), "line 1 (byte 0): '# hello'")
        self.file.write_text("".join(self.lines[1:]))  # may be missing
        self.train("--epochs", 1, "--data", self.file)

    def test_binary(self):
        self.check("\x01\x02\n" * 50, "line 1 (byte 0): 1 value, expected 65")

    def test_missing_and_directory(self):
        missing = self.folder / "none.csv"
        self.refused(missing, "No such file", options=["--data", missing])
        self.refused(self.folder, "directory", options=["--data", self.folder])


class Mnist(Case):
    """The IDX format, with the digits in it."""

    def setUp(self):
        super().setUp()
        rows = [list(map(int, line.split(","))) for line in CSV.read_text().splitlines()[1:]]
        self.write("train", rows[:1200])
        self.write("t10k", rows[1200:])

    def path(self, kind, what):
        return self.folder / f"{kind}-{what}-ubyte"

    def write(self, kind, rows):
        pixels = bytes(15 * value for row in rows for value in row[:64])
        labels = bytes(row[64] for row in rows)
        self.path(kind, "images-idx3").write_bytes(struct.pack(">4I", 0x803, len(rows), 8, 8) + pixels)
        self.path(kind, "labels-idx1").write_bytes(struct.pack(">2I", 0x801, len(rows)) + labels)

    def check(self, path, change, *words):
        good = path.read_bytes()
        path.write_bytes(change(good))
        self.refused(path, *words, options=["--mnist", self.folder])
        path.write_bytes(good)

    def test_trains(self):
        output = self.train("-n", 3, "--mnist", self.folder, "--epochs", 10, "--check-bits")
        self.assertIn("1200 images and 597 to test", output)
        self.assertGreater(accuracy(output), 85)  # other people's hands, so less than above

    def test_images(self):
        path = self.path("train", "images-idx3")
        self.check(path, lambda b: b"\0\0\x0d\x03" + b[4:], "byte 0: the magic number is 0x00000d03", "0x00000803")
        self.check(path, lambda b: b"\x1f\x8b" + b[2:], "byte 0", "gzip")
        self.check(path, lambda b: b[:11], "byte 11: the file ends within its header of 16 bytes")
        self.check(path, lambda b: b"", "byte 0: the file ends within its header")
        self.check(path, lambda b: b[:-1], "byte 76815: the file ends here", "76816 bytes")
        self.check(path, lambda b: b + b"x", "byte 76816: the file goes on")
        self.check(path, lambda b: b[:8] + b"\xff\xff\xff\xff" * 2 + b[16:], "byte 8", "4294967295", "1 to 1024")
        self.check(path, lambda b: b[:4] + b"\0\0\0\0" + b[8:], "byte 4", "length 0")

    def test_labels(self):
        path = self.path("t10k", "labels-idx1")
        self.check(path, lambda b: b[:108] + b"\x0a" + b[109:], "byte 108: the label is 10", "0 to 9")
        self.check(path, lambda b: b[:4] + struct.pack(">I", 596) + b[8:-1], "byte 4: 596 labels", "597 images")
        self.check(path, lambda b: b[:-3], "byte 602: the file ends here", "605 bytes")

    def test_shapes_and_absence(self):
        path = self.path("t10k", "images-idx3")
        self.check(path, lambda b: b[:8] + struct.pack(">2I", 4, 8) + b[16 : 16 + 597 * 32], "byte 8: 32 pixels")
        path.unlink()
        self.refused(path, "No such file", options=["--mnist", self.folder])


class Starting(Case):
    """Ranks that something else starts, and what a terminal shows."""

    def start(self, ranks, **changes):
        job = f"digits-test-{os.getpid()}-{time.monotonic_ns()}"
        processes = []
        for rank in range(ranks):
            place = {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(ranks), "HVD_JOB": job, **changes}
            processes.append(
                subprocess.Popen(
                    [PROGRAM, "--global-batch", "64", "--epochs", "3", "--check-bits"],
                    env={**ENVIRONMENT, **place},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        return [(*process.communicate(timeout=40), process.returncode) for process in processes]

    def test_by_environment(self):
        results = self.start(3)
        self.assertEqual([code for _, _, code in results], [0, 0, 0], results)
        self.assertIn("3 ranks", results[0][0])
        self.assertEqual([output for output, _, _ in results[1:]], ["", ""])

    def test_bad_environment(self):
        for changes, words in (
            ({"HOROVOD_RANK": "two"}, ("HOROVOD_RANK", "two")),
            ({"HOROVOD_RANK": "7", "HOROVOD_SIZE": "2"}, ("HOROVOD_RANK", "7")),
            ({"HOROVOD_SIZE": "-3"}, ("HOROVOD_SIZE", "-3")),
        ):
            with self.subTest(changes=changes):
                ((_, error, code),) = self.start(1, **changes)
                self.assertEqual(code, 1)
                for word in words:
                    self.assertIn(word, error)

    def test_terminal_has_a_bar(self):
        master, slave = pty.openpty()
        process = subprocess.Popen([PROGRAM, "--epochs", "200"], stdout=slave, stderr=slave, env=ENVIRONMENT)
        os.close(slave)
        shown = b""
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline and select.select([master], [], [], 1)[0] or process.poll() is None:
            try:
                piece = os.read(master, 65536)
            except OSError:  # how Linux reports the end of a terminal
                break
            shown += piece
        os.close(master)
        self.assertEqual(process.wait(10), 0, shown)
        self.assertRegex(shown, rb"\r\[#+\.*\] +\d+ %")
        last = shown.rstrip().split(b"\n")[-1]
        self.assertTrue(last.startswith(b"\r\x1b[Ktest accuracy"), last)


class Signals(Case):
    """However a run is ended, nothing stays behind."""

    def setUp(self):
        super().setUp()
        self.shared = set(os.listdir("/dev/shm"))
        self.process = subprocess.Popen(
            [PROGRAM, "-n", "3", "--epochs", "1000000", "--checkpoint", str(self.folder / "state")],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.addCleanup(self.clean_up)
        while not self.process.stdout.readline().startswith("epoch"):
            self.assertIsNone(self.process.poll(), "ended before the first epoch")

    def clean_up(self):
        if self.alive():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.stdout.close()
        self.process.stderr.close()

    def alive(self):
        """The processes of the run, which has a process group of its own."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                fields = Path("/proc", name, "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == self.process.pid and fields[0] != "Z":
                found.append(int(name))
        return found

    def ends(self, code, seconds=5):
        # Read meanwhile, or a full pipe would keep rank 0.
        _, error = self.process.communicate(timeout=seconds)
        self.assertEqual(self.process.returncode, code, error)
        self.assertEqual(self.alive(), [])
        left = {name for name in os.listdir("/dev/shm") if name.startswith("hvd-")} - self.shared
        self.assertEqual(left, set())
        return error

    def test_interrupt_to_the_parent(self):
        self.process.send_signal(signal.SIGINT)
        self.assertIn("interrupted", self.ends(130))

    def test_interrupt_to_all_as_from_a_keyboard(self):
        os.killpg(self.process.pid, signal.SIGINT)
        self.assertIn("interrupted", self.ends(130))

    def test_terminate(self):
        self.process.send_signal(signal.SIGTERM)
        self.ends(143)

    def test_a_rank_is_killed(self):
        rank = max(pid for pid in self.alive() if pid != self.process.pid)
        os.kill(rank, signal.SIGKILL)
        self.ends(137)
        # The checkpoint of the last whole epoch can be used.
        self.train("--resume", self.folder / "state", "--epochs", 1)


class Options(Case):
    def test_refused(self):
        for arguments, words in (
            (["-n", "0"], ("-n", "'0'", "1 to 64")),
            (["-n", "65"], ("-n", "'65'", "1 to 64")),
            (["--ranks", "two"], ("-n", "'two'", "1 to 64")),
            (["-n", ""], ("-n", "''", "1 to 64")),
            (["-n"], ("-n", "value")),
            (["--epochs", "-1"], ("--epochs", "'-1'", "1 to 1000000")),
            (["--epochs=1.5"], ("--epochs", "'1.5'", "1 to 1000000")),
            (["--batch", "0"], ("--batch", "'0'", "1 to")),
            (["--global-batch", "99999999999999999999999"], ("--global-batch", "1 to")),
            (["--lr", "0"], ("--lr", "'0'", "above 0")),
            (["--lr", "nan"], ("--lr", "'nan'", "above 0")),
            (["--lr", "inf"], ("--lr", "'inf'", "at most 10")),
            (["--lr", "0.1x"], ("--lr", "'0.1x'", "above 0")),
            (["--seed", "-1"], ("--seed", "'-1'", "0 to")),
            (["--data", ""], ("--data", "''", "file")),
            (["--check-bits=yes"], ("--check-bits", "no value")),
            (["--no-such-option"], ("'--no-such-option'", "--help")),
            (["-x"], ("'-x'", "--help")),
            (["digits"], ("'digits'", "--help")),
            (["--batch", "4", "--global-batch", "4"], ("--batch", "--global-batch")),
            (["--data", "a", "--mnist", "b"], ("--data", "--mnist")),
        ):
            with self.subTest(arguments=arguments):
                result = run(*arguments)
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                self.assertRegex(result.stderr, r"^train_digits: [^\n]+\n$")
                for word in words:
                    self.assertIn(word, result.stderr)

    def test_ranks_come_from_one_place(self):
        result = run("-n", "2", env={"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"})
        self.assertEqual(result.returncode, 2)
        self.assertIn("-n: HOROVOD_RANK is set", result.stderr)

    def test_help(self):
        output = self.train("--help")
        for option in ("-n, --ranks", "--global-batch", "--mnist", "--resume", "--check-bits"):
            self.assertIn(option, output)
        self.assertEqual(self.train("-h"), output)


if __name__ == "__main__":
    PROGRAM, CSV = os.path.abspath(sys.argv[1]), Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
