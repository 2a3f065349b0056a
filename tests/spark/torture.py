"""For the kill tests: a program of joins that is killed with SIGKILL at random moments and started again.

One program runs a join of each kind side by side, so that a kill hits all of them, each in another step of its batch.
A moment is the next file of some kind, as files stand for the steps of a batch, or some tenths of a second later.
"""

from __future__ import annotations

import contextlib
import glob
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from streamjoin.spark import rescale
from tests.spark.exactly_once_driver import KINDS
from tests.spark.spark_cluster import end, executors, linked_home

PATIENCE = 240.0
"""Seconds without any progress after which the program is taken for stuck."""

LOG = "checkpoint/streamjoin/join"
MOMENTS = (
    "checkpoint/offsets/*",
    f"{LOG}/versions/*/*.piece",
    f"{LOG}/versions/*/.*.piece.*",
    f"{LOG}/versions/*/*.manifest",
    f"{LOG}/versions/*/*.gate",
    f"{LOG}/versions/*/*.marks",
    f"{LOG}/versions/*/*.merge",
    "out/*.parquet",
    "out/_spark_metadata/*",
    "checkpoint/commits/*",
)


@dataclass
class Kills:
    """What is still to be killed, and what was seen on the way."""

    wanted: int
    tell: Callable[[str], None]
    done: int = 0
    of_drivers: int = 0
    seen: set[str] = field(default_factory=set)

    @property
    def left(self) -> int:
        return self.wanted - self.done

    def count(self, what: str, moment: str, *, driver: bool) -> None:
        self.done += 1
        self.of_drivers += driver
        self.tell(f"kill {self.done} of {self.wanted}: {what} after {moment}")


class Victim:
    """The program, over the files of one directory, as often as it is started."""

    def __init__(self, directory: Path, master: str, batches: int, rng: random.Random, kills: Kills) -> None:
        self._directory = directory
        self._master = master
        self._batches = batches
        self._rng = rng
        self._kills = kills
        self._process: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []
        self._home = linked_home(directory)

    def run_to_the_end(self, share_of_drivers: float) -> None:
        """Run the program until all its input is joined; as long as kills are left, kill on the way.

        Of the kills this share is of the driver. Its executors and workers are then left to themselves as often as not:
        what they still write must not matter to the next start.
        """
        try:
            while not self._finished(share_of_drivers):
                pass
        finally:
            # Also what drivers that were killed alone left behind.
            for process in self._started:
                end(process)

    @property
    def log(self) -> str:
        return (self._directory / "log").read_text()

    def _finished(self, share_of_drivers: float) -> bool:
        if self._process is None:
            self._start()
        if self._kills.left == 0:
            return self._to_the_end()
        moment = self._moment()
        if moment is None or not self._until(moment):
            return self._to_the_end()
        self._rescale()
        if self._rng.random() < share_of_drivers:
            self._kill_the_driver(moment)
        else:
            self._kill_an_executor(moment)
        return False

    def _to_the_end(self) -> bool:
        """Let it run undisturbed until it ends."""
        since = time.monotonic()
        while not self._ends_within(0.1):
            self._note()
            assert time.monotonic() - since < PATIENCE, self.log[-4000:]
        assert self._running.returncode == 0, self.log[-4000:]
        return True

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _start(self) -> None:
        root = Path(__file__).parents[2]
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")]),
            "PYSPARK_PYTHON": sys.executable,
        }
        if self._master.startswith("local-cluster"):
            environ["SPARK_HOME"] = str(self._home)
        arguments = [str(self._directory), self._master, str(self._rng.choice([2, 3]))]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.exactly_once_driver", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environ,
                cwd=root,
            )
        self._started.append(self._process)

    def _moment(self) -> str | None:
        """The next moment to wait for, of a join that has batches to go; None when all are done."""
        going = [kind for kind in KINDS if self._newest(kind, "commits") < self._batches - 1]
        if not going:
            return None
        kind = self._rng.choice(going)
        others = {**dict.fromkeys(("time", "arrival"), (".gate", ".marks")), "full": ()}.get(kind, (".marks",))
        steps = [moment for moment in MOMENTS if not moment.endswith(others)]
        return f"{kind}/{self._rng.choice(steps)}"

    def _newest(self, kind: str, part: str) -> int:
        found = self._files(f"{kind}/checkpoint/{part}/[0-9]*")
        return max((int(Path(path).name) for path in found), default=-1)

    def _files(self, pattern: str) -> set[str]:
        """The files that fit; unlike with Path.glob, directories may go meanwhile."""
        return set(glob.glob(str(self._directory / pattern)))  # noqa: PTH207

    def _until(self, moment: str) -> bool:
        """Let it run until the next file of a kind comes, and a little more; False if it ended before."""
        since = time.monotonic()
        before, commits = self._files(moment), self._files("*/checkpoint/commits/*")
        # A merge may not come at all: three batches are long enough to wait for one.
        while not self._files(moment) - before:
            if self._ends_within(0.01):
                return False
            self._note()
            now = self._files("*/checkpoint/commits/*")
            if len(now) - len(commits) >= 3 * len(KINDS):
                return True
            assert time.monotonic() - since < PATIENCE, self.log[-4000:]
        return not self._ends_within(self._rng.choice([0.0, 0.0, 0.3 * self._rng.random()]))

    def _ends_within(self, seconds: float) -> bool:
        try:
            self._running.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _note(self) -> None:
        """Remember that a merge was made, and into how many ranges a batch was cut."""
        self._kills.seen |= {"merge" for _ in self._files(f"*/{LOG}/versions/*/*.merge")}
        pieces = self._files(f"*/{LOG}/versions/*/*.piece")
        self._kills.seen |= {Path(path).name.split("-of-")[1] for path in pieces}

    def _rescale(self) -> None:
        for kind in KINDS:
            if (self._directory / kind / LOG / "join.json").exists():
                rescale(self._directory / kind / "checkpoint", self._rng.choice([1, 2, 4]))

    def _kill_the_driver(self, moment: str) -> None:
        alone = self._rng.random() < 0.5
        if not alone:
            end(self._running)
        else:
            for pid in self._with_arguments("tests.spark.exactly_once_driver", "org.apache.spark.deploy.SparkSubmit"):
                os.kill(pid, signal.SIGKILL)
            self._running.wait()
        self._process = None
        self._kills.count("the driver" + " alone" * alone, moment, driver=True)

    def _kill_an_executor(self, moment: str) -> None:
        """Kill an executor with its Python, or the Python workers of one; both are started again."""
        found = executors([self._running.pid])
        workers = self._with_arguments("streamjoin.spark.runtime.daemon")
        if found and (not workers or self._rng.random() < 0.7):
            what, victims = "an executor", [self._rng.choice(found)]
        else:
            what, victims = "the Python of an executor", workers[:1]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if victims:
            self._kills.count(what, moment, driver=False)

    def _with_arguments(self, *words: str) -> list[int]:
        """The processes of the program's session that one of `words` is an argument of."""
        listed = subprocess.run(["ps", "-e", "-o", "pid=,sess=,args="], capture_output=True, text=True, check=True)
        found = []
        for line in listed.stdout.splitlines():
            pid, session, args = line.split(None, 2)
            if int(session) == self._running.pid and any(word in args.split() for word in words):
                found.append(int(pid))
        return found
