"""The engine's log: crashes at every moment, damaged files, and sinks that fail, without Spark."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import fs

from streamjoin.adhoc import MemorySink, ParquetSink, Settings
from streamjoin.model.errors import CheckpointError, SpecError, StateError, StreamJoinError
from streamjoin.queries.core.arrivals import Arrived, Clocks
from streamjoin.queries.engine.journal import FileJournal, safe_name
from streamjoin.storage.places import Origin, RemotePath
from tests.oracles import adhoc_cases
from tests.oracles.adhoc_oracle import Arrival, Life, gate_order, rows
from tests.oracles.row_evaluator import plain
from tests.queries.core_cases import lateness_of, streams_of
from tests.queries.journal_cases import LEFT, PAIRS, RIGHT, Killed, killed_at, table
from tests.queries.looped import Looped, read_back


class Crashing:
    """Drives a workload through restarts; `life` is when queries really began and ended, by the log's own records."""

    def __init__(self, directory: Path, case: adhoc_cases.AdhocCase, sharing: Any) -> None:
        self.directory, self.case = directory, case
        self.settings = Settings(lateness=lateness_of(case), replan_every=2, sharing=sharing)
        self.run: Looped | None = None

    def open(self) -> Looped:
        if self.run is None:
            self.run = Looped(self.directory / "checkpoint", self.settings)
        return self.run

    def killed(self) -> None:
        if self.run is not None:
            self.run.abandon()
            self.run = None

    def steps(self) -> None:
        """Everything that is not there yet, from the first step on."""
        run = self.open()
        run.settle()
        for stream in streams_of(self.case):
            if stream.name not in run.catalog.streams:
                run.register(stream, self.settings.lateness_of(stream))
        acted = {(record.action, record.name) for record in run.catalog.changelog}
        for batch in range(len(self.case.batches)):
            for query in self.case.queries:
                if query.life.dropped == batch and ("drop", query.name) not in acted:
                    run.ask_for("drop", query.name)
                if query.life.created == batch and ("create", query.name) not in acted:
                    run.create(query.name, query.text, ParquetSink(str(self.directory / query.name)))
            tables = self.case.tables(batch)
            due = {name: (batch, t) for name, t in tables.items() if run.newest(name) < batch}
            if due:
                run.hand(due)


def arrival_batches(journal: FileJournal) -> dict[tuple[str, int], int]:
    """The engine's batch of each stream's Spark batches, by the log's records of all batches."""
    found: dict[tuple[str, int], int] = {}
    for batch in journal.numbers("batches"):
        for stream, number in journal.read("batches", batch)["consumed"].items():
            found.setdefault((stream, number), batch)
    return found


SLOW = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))


@SLOW
@given(
    adhoc_cases.cases(most_queries=3, most_batches=4),
    st.lists(st.tuples(st.integers(0, 25), st.booleans()), min_size=1, max_size=4),
    st.sampled_from(["cost", "cost", "nothing"]),
)
def test_every_row_once_however_often_it_is_killed(
    tmp_path_factory: pytest.TempPathFactory, case: adhoc_cases.AdhocCase, kills: list[tuple[int, bool]], sharing: Any
) -> None:
    directory = tmp_path_factory.mktemp("killed")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(FileJournal, "kept", 10**6)
    engine = Crashing(directory, case, sharing)
    for write, after in kills:
        with killed_at(write, after, monkeypatch):
            with contextlib.suppress(Killed, StreamJoinError):
                engine.steps()
            engine.killed()
    engine.steps()
    run = engine.open()
    assert run.failure is None
    changes = run.catalog.changelog
    batches = arrival_batches(run.journal)
    run.stop()
    arrivals = gate_order(
        [
            Arrival(stream, {name: plain(value) for name, value in row.items()}, case._ts(row), batches[stream, number])
            for number, streams in enumerate(case.batches)
            for stream, found in streams.items()
            for row in found
        ]
    )
    for query in case.queries:
        when = {record.action: record.batch for record in changes if record.name == query.name}
        if "create" not in when:
            continue
        names = [*(f"i_{alias}" for alias, _ in query.meaning.sources), "total"]
        found = Counter(read_back(directory / query.name, names))
        assert found == rows(arrivals, query.meaning, Life(when["create"], when.get("drop")))
    monkeypatch.undo()
    shutil.rmtree(directory)


def run_of_three(directory: Path) -> None:
    """Whatever of a small run is not done yet: three batches, queries that come, go and write Parquet."""
    run = Looped(directory / "checkpoint", Settings(replan_every=2))
    try:
        run.begin(LEFT, RIGHT)
        for number in range(3):
            acted = {(record.action, record.name) for record in run.catalog.changelog}
            if ("create", f"q{number}") not in acted:
                run.create(f"q{number}", PAIRS, ParquetSink(str(directory / f"q{number}")))
            if number == 2 and ("drop", "q0") not in acted:
                run.ask_for("drop", "q0")
            tables = {"l": table((1, number, number)), "r": table((1, 10 + number, number), (1, 20 + number, number))}
            run.go_on(number, tables)
        run.catalog.deliveries.drain()
    finally:
        run.abandon()


def test_killed_at_every_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuples of batch n come after the create of q<n>, and q0 ends before those of batch 2."""
    batches = {0: range(2), 1: range(1, 3), 2: range(2, 3)}
    killed = 0
    for write in range(100):
        directory = tmp_path / str(write)
        with killed_at(write, bool(write % 2), monkeypatch):
            try:
                run_of_three(directory)
                break
            except (Killed, StreamJoinError):
                killed += 1
        run_of_three(directory)
        for number, seen in batches.items():
            wanted = [(n, side + m) for n in seen for m in seen for side in (10, 20)]
            assert sorted(read_back(directory / f"q{number}", ["a", "b"])) == sorted(wanted), (write, number)
    assert killed > 20


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run left behind: two queries, tuples held, a state and changes after it."""
    directory = tmp_path_factory.mktemp("made") / "checkpoint"
    with Looped(directory) as run:
        run.register(LEFT)
        run.register(RIGHT)
        run.create("a", PAIRS)
        run.hand({"l": (0, table((1, 10, 0)))})
    with Looped(directory) as run:
        run.create("b", PAIRS)
        run.hand({"r": (0, table((1, 20, 1)))})
        assert run.catalog.entries["a"].rows == 1
    return directory


@pytest.mark.parametrize("kind", ["changes", "batches", "buckets", "state", "engine.json"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "format"])
def test_harm_to_a_file_is_told(checkpoint: Path, tmp_path: Path, harm: str, kind: str) -> None:
    made = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, made)
    victim = made / kind if kind == "engine.json" else max((made / kind).iterdir())
    data = victim.read_bytes()
    middle = len(data) // 2
    if harm == "format" and kind == "buckets":
        victim.write_bytes(b"ARROW1\0\0" + data[8:-8] + b"ARROW1\0\0")
    elif harm == "format":
        victim.write_bytes(data.replace(b"streamjoin-adhoc 1 ", b"streamjoin-adhoc 9 ", 1))
    elif harm == "flip":
        victim.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    elif harm == "cut":
        victim.write_bytes(data[:middle])
    else:
        victim.unlink()
    if harm == "remove" and kind in ("batches", "state"):
        # The newest one gone is an older state: nothing in it is wrong, and Spark's commits tell what it lacks.
        with Looped(made) as run:
            assert set(run.catalog.entries) == {"a", "b"}
        return
    wanted = {"remove": "missing|no engine.json", "format": "format|no file|damaged"}.get(harm, "damaged|no file")
    with pytest.raises(CheckpointError, match=wanted):
        Looped(made)


def test_a_checkpoint_says_what_it_lacks(checkpoint: Path, tmp_path: Path) -> None:
    made = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, made)
    for kind, number in (("offsets", 0), ("commits", 0)):
        (made / "streams" / "l" / kind).mkdir(parents=True)
        (made / "streams" / "l" / kind / str(number)).touch()
    with Looped(made) as run:
        run.journal.check_spark("l", 0)
        for consumed in (1, -1):
            with pytest.raises(CheckpointError, match="is incomplete"):
                run.journal.check_spark("l", consumed)
        with pytest.raises(StateError, match="another engine"):
            Looped(made)


def test_a_query_that_cannot_be_computed_fails_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Looped(tmp_path / "checkpoint") as run:
        run.register(LEFT)
        run.register(RIGHT)
        run.create("sum", PAIRS.replace("x.p AS a", "x.p + y.p AS a"))
        run.create("plain", PAIRS, MemorySink(5))
        run.hand({"l": (0, table((1, 2**63 - 1, 0))), "r": (0, table((1, 1, 1)))})
        assert run.catalog.entries["sum"].info().state == "failed"
        (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert line == f"query 'sum' failed in batch 4 and is paused: {run.catalog.entries['sum'].info().error}"
        assert "plain" in run.catalog.entries and run.catalog.entries["plain"].rows == 1
    with Looped(tmp_path / "checkpoint") as run:
        info = run.catalog.entries["sum"].info()
        assert info.state == "failed" and info.error
        run.ask_for("resume", "sum")
        assert run.catalog.entries["sum"].info().state == "running"


def test_buckets_that_no_restart_needs_are_removed(tmp_path: Path) -> None:
    with Looped(tmp_path / "checkpoint") as run:
        run.register(LEFT)
        run.register(RIGHT)
        run.create("q", PAIRS)
        for number in range(12):
            run.hand({"l": (number, table((1, number, 4 * number))), "r": (number, table((1, number, 4 * number)))})
    # Times within 5 of what may still come are held: the two newest of each stream.
    left = sorted(entry.name for entry in (tmp_path / "checkpoint" / "buckets").iterdir())
    assert len(left) <= 6
    assert [entry.name for entry in (tmp_path / "checkpoint" / "batches").iterdir()]


def test_parquet_directories_are_not_mixed_up(tmp_path: Path) -> None:
    for number in (1, 2):
        with Looped(tmp_path / f"checkpoint-{number}") as run:
            run.register(LEFT)
            run.register(RIGHT)
            sink = ParquetSink(str(tmp_path / "out"))
            if number == 2:
                with pytest.raises(SpecError, match="did not write"):
                    run.create("q", PAIRS, sink)
                sink = ParquetSink(str(tmp_path / "out"), append=True)
            run.create("q", PAIRS, sink)
            run.hand({"l": (0, table((1, 10, 0))), "r": (0, table((1, 20, 1)))})
    assert read_back(tmp_path / "out", ["a", "b"]) == [(10, 20)] * 2
    (tmp_path / "file").write_text("in the way")
    with Looped(tmp_path / "checkpoint-1") as run:
        with pytest.raises(SpecError, match="can't be made"):
            run.create("new", PAIRS, ParquetSink(str(tmp_path / "file" / "below")))
        assert "new" not in run.catalog.entries


@pytest.mark.parametrize(("name", "safe"), [("orders", "orders"), ("a b", "a~20b"), ("x/../y", "x~2f~2e~2e~2fy")])
def test_names_become_parts_of_paths(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_a_checkpoint_may_be_on_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMJOIN_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "far").mkdir()
    far = RemotePath(
        fs.SubTreeFileSystem(str(tmp_path / "far"), fs.LocalFileSystem()), "log", Origin("far://log", "log")
    )
    monkeypatch.setattr("streamjoin.queries.engine.journal.reached", lambda _: far)
    with Looped(tmp_path / "ignored") as run:
        run.register(LEFT, 1)
        run.register(RIGHT)
        run.create("q", PAIRS, ParquetSink(str(tmp_path / "out")))
        run.hand({"l": (0, table((1, 10, 5)))})
        run.hand({"l": (1, table((1, 11, 0)))})
    with Looped(tmp_path / "ignored") as run:
        run.hand({"r": (0, table((1, 20, 6)))})
        late = run.journal.aside("late", "l")
        assert late is not None
        assert late.to_pylist() == [{"k": 1, "p": 11, "t": 0}]
        run.journal.check_spark("l", -1)
    assert read_back(tmp_path / "out", ["a", "b"]) == [(10, 20)]
    assert (tmp_path / "far" / "log" / "engine.json").exists()
    assert not (tmp_path / "ignored").exists()


def test_what_is_set_aside_is_kept_up_to_a_size(tmp_path: Path) -> None:
    late = table((1, 11, 0))
    journal = FileJournal(str(tmp_path), "embedded", aside_bytes=1)
    for batch in range(3):
        journal.write_input(Arrived({}, {"l": late}, {}, Clocks.start({}), batch), {}, {}, 0)
    journal.write_input(Arrived({}, {"l": late}, {}, Clocks.start({}), 3), {}, {}, 0)
    journal.close()
    assert [path.name[:12] for path in (tmp_path / "late" / "l").iterdir()] == ["000000000003"]
