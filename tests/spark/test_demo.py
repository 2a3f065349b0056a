"""The demo: what it measures, how it looks, what it clears, and the whole of it as a stranger runs it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import streamjoin as sj
from streamjoin.spark.demo import run as demo
from streamjoin.spark.demo.run import MARKER, _errors_to, claimed
from streamjoin.spark.demo.view import (
    WIDTH,
    DemoFigures,
    Watch,
    Window,
    closing,
    curve,
    frame,
    newest,
    plain_line,
    view,
    weighted,
)
from streamjoin.spark.runtime.session import Stopping

START = datetime(2013, 1, 1, 6, tzinfo=UTC)
EVERY = timedelta(hours=6)


def matches(*minutes: int) -> pa.Table:
    """Matches whose later row is of these times, each of another flight."""
    later = pa.array([START + timedelta(minutes=at) for at in minutes], pa.timestamp("us", "UTC"))
    earlier = pa.array([START - timedelta(minutes=60 - at) for at in minutes], later.type)
    n = len(minutes)
    names = {
        "airport": ["EWR"] * n,
        "destination": ["IAH"] * n,
        "carrier": ["UA"] * n,
        "flight": list(range(1545, 1545 + n)),
    }
    delays = pa.array([None if at % 2 else -2 for at in minutes], pa.int32())
    weather = {"wind": [12.7] * n, "visibility": [10.0] * n, "observed": earlier}
    return pa.table({"result_time": later, "scheduled": later, **names, "delay": delays, **weather})


class Output:
    """A demo's directory written by hand: slices of the feeds, and what the sink committed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "matches" / "_spark_metadata"
        self.log.mkdir(parents=True)
        (root / "flights").mkdir()
        self.names: list[str] = []

    def drop(self, number: int, at: float) -> None:
        path = self.root / "flights" / f"{number:08d}.parquet"
        path.touch()
        os.utime(path, (at, at))

    def commit(self, number: int, at: float, table: pa.Table | None = None, *, compact: bool = False) -> None:
        fresh = []
        if table is not None:
            fresh = [f"part-{number}.parquet"]
            pq.write_table(table, self.root / "matches" / fresh[0])
        self.names += fresh
        lines = [json.dumps({"path": f"file:///elsewhere/{name}"}) for name in (self.names if compact else fresh)]
        path = self.log / (f"{number}.compact" if compact else str(number))
        path.write_text("\n".join(["v1", *lines]))
        (self.log / f".{path.name}.crc").touch()
        os.utime(path, (at, at))


def progress(batch: int, flights: int, weather: int, milliseconds: int = 500) -> Mapping[str, Any]:
    sources = [
        {"description": f"FileStreamSource[file:/x/{name}]", "numInputRows": rows}
        for name, rows in (("weather", weather), ("flights", flights))
    ]
    return {
        "batchId": batch,
        "numInputRows": flights + weather,
        "sources": sources,
        "durationMs": {"triggerExecution": milliseconds},
    }


@pytest.fixture
def output(tmp_path: Path) -> Output:
    return Output(tmp_path)


def test_latency_runs_from_the_slice_to_the_commit(output: Output) -> None:
    output.drop(0, 1000.0)
    output.drop(1, 1000.25)
    output.commit(0, 1001.0, matches(10, 20, 359, 360))
    figures = Watch(output.root, START, EVERY).update(2.0, [])
    assert figures.matches == 4
    assert figures.latency == pytest.approx((1.0, 1.0))
    assert list(figures.latencies) == pytest.approx([1.0])
    output.commit(1, 1010.25, matches(370))
    watch = Watch(output.root, START, EVERY)
    watch.update(1.0, [])
    assert watch.figures.latency == pytest.approx((1.0, 10.0))


def test_every_file_counts_once_and_only_when_committed(output: Output) -> None:
    watch = Watch(output.root, START, EVERY)
    assert watch.update(0.0, []).matches == 0
    output.drop(0, 1.0)
    pq.write_table(matches(1, 2), output.root / "matches" / "part-uncommitted.parquet")
    output.commit(0, 2.0, matches(1))
    output.commit(1, 3.0)
    assert watch.update(0.1, []).matches == 1
    output.commit(2, 4.0, matches(1, 2, 3), compact=True)
    assert watch.update(0.2, []).matches == 4
    assert watch.update(0.3, []).matches == 4
    assert watch.figures.newest[0]["result_time"] == START + timedelta(minutes=3)


def test_progress_counts_each_batch_once_and_no_idle_moment(output: Output) -> None:
    watch = Watch(output.root, START, EVERY)
    watch.update(1.0, [progress(0, 0, 0), progress(0, 10, 30, 400)])
    figures = watch.update(2.0, [progress(0, 10, 30, 400), progress(1, 0, 0), progress(1, 5, 0, 200)])
    assert (figures.flights, figures.weather, figures.batches) == (15, 30, 2)
    assert figures.batch_median == pytest.approx(0.3)


def test_rates_are_of_the_last_seconds(output: Output) -> None:
    watch = Watch(output.root, START, EVERY)
    watch.update(0.0, [])
    for second in range(1, 20):
        watch.update(float(second), [progress(second, 100 if second > 10 else 1000, 200)])
    assert watch.figures.rates == pytest.approx((100.0, 200.0, 0.0))


def test_weighted_quantiles() -> None:
    assert weighted([(2.0, 1)], (0.5, 0.95)) == [2.0, 2.0]
    values = [(float(i), 1) for i in range(1, 101)]
    assert weighted(values, (0.5, 0.95)) == [50.0, 95.0]
    assert weighted([(5.0, 99), (1.0, 1)], (0.005, 0.5)) == [1.0, 5.0]


def test_newest_shows_each_flight_once_and_the_latest_first() -> None:
    table = pa.concat_tables([matches(1, 5, 3), matches(7, 2)])
    assert [(row["flight"], row["result_time"].minute) for row in newest(table, 2)] == [(1545, 7), (1546, 5)]


def filled() -> DemoFigures:
    return DemoFigures(
        elapsed=1234.5,
        flights=123_456_789,
        weather=123_456_789,
        matches=1_234_567_890,
        rates=(9_999.0, 9_999.0, 999_999.0),
        latency=(12.3, 45.6),
        window=Window(123_456, 654_321, 123_456_789, 12, 3),
        newest=newest(matches(*range(12)), 12),
    )


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("size", [(100, 40), (80, 24)])
@pytest.mark.parametrize("figures", [DemoFigures(), filled()], ids=["empty", "full"])
def test_the_frame_fits_the_terminal(figures: DemoFigures, size: tuple[int, int], encoding: str) -> None:
    figures.batch_seconds.extend([0.5, 1.5])
    figures.match_rates.extend([1.0, 2.0] * 30)
    width, height = size
    written = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=written, force_terminal=True, color_system=None, width=width, height=height)
    console.print(frame(figures, 30, console))
    written.seek(0)
    lines = written.read().splitlines()
    assert max(map(len, lines)) <= min(width, WIDTH)
    assert len(lines) < height
    if figures.newest:
        rows = [" ".join(line.replace("|", " ").split()) for line in lines if "UA 15" in line]
        assert rows[:2] == [
            "01 Jan 06:11 UA 1556 EWR IAH cancelled 13 mph 10 mi 60 min before",
            "01 Jan 06:10 UA 1555 EWR IAH -2 min 13 mph 10 mi 60 min before",
        ]
    assert all(
        any(line.strip().startswith(name) for line in lines) for name in ("flights", "latency", "window", "late")
    )


def test_plain_lines_fit_and_come_now_and_then() -> None:
    ordinary = DemoFigures(
        elapsed=28.6, rates=(1_273.0, 105.0, 12_787.0), latency=(0.7, 1.2), window=Window(1_000, 300)
    )
    ordinary.batch_seconds.append(0.5)
    assert len(plain_line(ordinary)) <= 100
    console = Console(file=io.StringIO(), width=100)
    with view(console, 30) as show:
        for tenth in range(100):
            show(DemoFigures(elapsed=tenth / 10))
    assert isinstance(console.file, io.StringIO)
    assert len(console.file.getvalue().splitlines()) == 4


def test_closing_words_keep_brackets() -> None:
    console = Console(file=io.StringIO(), width=40)
    closing(console, "done", [("result", "a/[b]/matches")])
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "\ndone\n  result   a/[b]/matches\n"


def test_a_window_that_is_pruned_while_it_is_read_waits_for_the_next_look(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(path: Path, pattern: str) -> list[Path]:
        if pattern == "*/*.manifest":
            raise FileNotFoundError(path)
        return []

    monkeypatch.setattr(Path, "glob", gone)
    assert Watch(output.root, START, EVERY).update(1.0, []).window == Window()


def test_what_starts_inside_complains_into_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with _errors_to(tmp_path / "log"):
        subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('quiet')"], check=True)
    assert (tmp_path / "log").read_text() == "quiet"
    assert capfd.readouterr().err == ""
    with pytest.raises(sj.SetupError), _errors_to(tmp_path / "log"):
        os.write(2, b"the reason")
        raise sj.SetupError("no Java")
    assert capfd.readouterr().err == "the reason"


def test_curves() -> None:
    assert curve([], 5) == curve([1.0], 0) == ""
    assert curve([0.0, 0.0], 5) == "▁▁"
    assert curve([1.0, 8.0], 5) == "▂█"


def test_a_demo_clears_its_own_and_nothing_else(tmp_path: Path) -> None:
    place = tmp_path / "new" / "demo"
    with claimed(place):
        (place / "matches").mkdir()
        (place / "matches" / "old.parquet").touch()
        with pytest.raises(sj.InputError, match="another demo is running"), claimed(place):
            pass
    (place / "notes.txt").write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (place / "flights").symlink_to(elsewhere)
    with claimed(place):
        assert sorted(path.name for path in place.iterdir()) == [MARKER, "notes.txt"]
    assert (elsewhere / "kept").exists()


def test_a_foreign_directory_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "matches").mkdir()
    with pytest.raises(sj.InputError, match="not created by the demo"), claimed(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["matches"]
    file = tmp_path / "matches" / "file"
    file.touch()
    with pytest.raises(sj.InputError, match="not created by the demo"), claimed(file):
        pass
    with pytest.raises(sj.InputError, match="can't write"), claimed(file / "below"):
        pass


def test_the_first_ctrl_c_is_noted_and_the_second_raised() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Stopping(signal.SIGINT) as ctrl_c:
        signal.raise_signal(signal.SIGINT)
        assert ctrl_c.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_what_it_warms_up_in_is_there_until_spark_has_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listeners go on writing to the checkpoint of a query that has ended."""
    used: list[Path] = []

    class Spark:
        def stop(self) -> None:
            (used[0] / "written late").mkdir()

    monkeypatch.setattr(demo, "_session", lambda *_: Spark())
    monkeypatch.setattr(demo, "_start", lambda _, output, **__: used.append(output) or Ended())
    monkeypatch.setattr(demo, "_joined", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        demo.run(seconds=1, output=tmp_path / "out", console=Console(file=io.StringIO()))
    assert not used[0].exists()


class Ended:
    """A query in which Ctrl-C was pressed."""

    def awaitTermination(self, _: float) -> bool:
        signal.raise_signal(signal.SIGINT)
        return False

    def stop(self) -> None:
        pass


DEMO = [sys.executable, "-W", "error", "-m", "streamjoin", "demo", "--output", "out", "--seconds"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.thorough
def test_the_demo_stopped_and_run_again(tmp_path: Path) -> None:
    pipes: dict[str, Any] = {"cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*DEMO, "600"], **pipes) as stopped:
        assert stopped.stdout is not None and stopped.stderr is not None
        begun = next((line for line in iter(stopped.stdout.readline, "") if "matches" in line), "")
        stopped.send_signal(signal.SIGINT)
        said, noise = stopped.stdout.read(), stopped.stderr.read()
    assert "stopped by Ctrl-C" in said, (begun, said, noise)
    assert (stopped.returncode, noise.strip()) == (130, "")
    test_the_whole_demo(tmp_path)


@pytest.mark.spark
@pytest.mark.slow
def test_the_whole_demo(tmp_path: Path) -> None:
    ran = subprocess.run(
        [*DEMO, "3", "--seed", "1"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "--seed is ignored and will be removed: the demo's data is real.\n")
    closing_words = ran.stdout.split("\n\n")[-1]
    count = "59,147"
    assert closing_words.startswith(f"{count} matches of 27,004 flights and 2,226 observations\n")
    assert f"Spark's own batch join of the same files finds the same {count} pairs" in closing_words
    assert all(f"\n  {name} " in closing_words for name in ("rate", "latency", "late", "result", "code"))
    assert "out/matches (Parquet)" in closing_words
    assert pq.read_table(tmp_path / "out" / "matches").num_rows == int(count.replace(",", ""))
