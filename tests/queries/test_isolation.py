"""A query that takes too much is stopped alone: budgets, scans, quarantine, and one that ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import Budget, Engine, ParquetSink, Settings
from streamjoin.model.errors import SpecError
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.core.stored_stream import BucketRun
from streamjoin.queries.engine import engine as adhoc_engine
from streamjoin.queries.engine.journal import FileJournal
from streamjoin.queries.engine.loop import Attempt
from tests.queries.journal_cases import PAIRS, opened, table
from tests.queries.looped import read_back

LESS = "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 5 UNITS ON x.p < y.p"


def test_a_query_over_its_budget_is_paused_with_figures_and_the_others_go_on(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        engine.create(PAIRS, name="small", budget=Budget(rows=10))
        engine.create(PAIRS, name="large")
        engine.push("l", table(*((1, n, 0) for n in range(5))))
        engine.push("r", table((1, 1, 0), (1, 2, 0)))
        assert engine.query("small").rows == 10
        engine.push("r", table(*((1, n, 0) for n in range(3))))
        small, large = engine.query("small"), engine.query("large")
        assert (small.state, small.rows, large.state, large.rows) == ("failed", 10, "running", 25)
        assert "over its budget of 10 rows a batch: 15 at" in str(small.error)
        record = engine.changelog()[-1]
        assert (record.action, record.name, record.reason) == ("pause", "small", small.error)
    # The budget is part of the query: a restart brings it back.
    with opened(tmp_path) as engine:
        engine.resume("small")
        engine.push("r", table((1, 1, 0), (1, 2, 0)))
        assert (engine.query("small").state, engine.query("small").rows) == ("running", 20)
        engine.push("r", table(*((1, n, 0) for n in range(3))))
        assert engine.query("small").state == "failed"
        assert engine.query("large").rows == 50


def test_the_engines_budget_is_for_queries_without_one() -> None:
    with opened(budget=Budget(candidates=3)) as engine:
        engine.create(PAIRS, name="q")
        engine.create(PAIRS, name="free", budget=Budget())
        engine.push("l", table(*((1, n, 0) for n in range(9))))
        engine.push("r", table((1, 1, 0)))
        assert (engine.query("q").state, engine.query("free").rows) == ("failed", 9)


def test_a_join_without_key_or_band_is_announced_and_refused_where_it_is_too_much() -> None:
    with opened(settings=Settings(scan_pairs=1)) as engine:
        assert engine.preview(PAIRS).warning is None
        assert "about 0 pairs per second" in str(engine.preview(LESS).warning)
        for name in "lr":
            engine.push(name, table(*((1, n, n) for n in range(50))))
        warning = str(engine.preview(LESS).warning)
        assert "the join with 'y' has no key and no band" in warning and "needs allow_scan" in warning
        with pytest.raises(SpecError, match="allow_scan=True"):
            engine.create(LESS)
        assert engine.queries() == []
        engine.create(LESS, allow_scan=True)
        engine.create(f"{LESS} AND x.k = y.k")


def test_tuples_of_one_moment_do_not_make_a_scan_look_large() -> None:
    schema = pa.schema({"k": pa.int64(), "t": pa.timestamp("us")})
    engine = Engine()
    for name in "lr":
        engine.register(name, schema=schema, time="t")
    with engine:
        for name in "lr":
            engine.push(name, [{"k": n, "t": datetime(2026, 1, 1)} for n in range(3)])
        engine.create("SELECT x.k FROM l x JOIN r y WITHIN 1 HOUR ON x.k < y.k")


def test_a_batch_that_does_not_end_is_interrupted_by_the_drop_of_its_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others get the rows of the very same batch."""
    monkeypatch.setattr(adhoc_engine, "INTERRUPT_AFTER", 0.05)
    results = Shared.results
    began = threading.Event()

    def endless(self: Shared, arrived: Any) -> Any:
        if arrived.buckets and any(name == "bad" and not entry.paused for name, entry in self.queries.items()):
            began.set()
            assert self._interrupted.wait(60)
        return results(self, arrived)

    monkeypatch.setattr(Shared, "results", endless)
    with opened() as engine:
        engine.create(PAIRS, name="good")
        engine.create(PAIRS, name="bad")
        tuples = {"l": table((1, 1, 0)), "r": table((1, 2, 0))}
        pushing = threading.Thread(target=engine.push_all, args=(tuples,))
        pushing.start()
        assert began.wait(60)
        engine.drop("bad")
        pushing.join(60)
        assert {info.name: info.rows for info in engine.queries()} == {"good": 1}
        engine.push("r", table((1, 3, 0)))
        assert engine.query("good").rows == 2


def unfinished(tmp_path: Path, bad: str = PAIRS) -> None:
    """A checkpoint whose newest batch has its tuples, but no rows yet."""
    with opened(tmp_path / "checkpoint") as engine:
        for name, sql in (("bad", bad), ("good", PAIRS)):
            engine.create(sql, name=name, sink=ParquetSink(str(tmp_path / name)))
        engine.push("l", table((1, 1, 0)))
        engine.push("r", table((1, 2, 0)))
    newest = max((tmp_path / "checkpoint" / "done").iterdir())
    newest.unlink()
    for name in ("bad", "good"):
        for file in (tmp_path / name).glob("*.parquet"):
            file.unlink()
    # The state that a clean stop leaves says that the batch is done.
    max((tmp_path / "checkpoint" / "state").iterdir()).unlink()


def finished(tmp_path: Path, **options: Any) -> dict[str, str]:
    with opened(tmp_path / "checkpoint", **options) as engine:
        engine.push("r", table((1, 3, 0)))
        states: dict[str, str] = {info.name: info.state for info in engine.queries()}
    return states


def test_a_query_in_quarantine_has_no_part_in_the_batch_that_is_computed_again(tmp_path: Path) -> None:
    unfinished(tmp_path)
    with pytest.raises(SpecError, match="there is no query 'nobody'"):
        opened(tmp_path / "checkpoint", quarantine=["nobody"])
    with pytest.raises(SpecError, match="a list of names"):
        opened(tmp_path / "checkpoint", quarantine="bad")
    assert finished(tmp_path, quarantine=["bad"]) == {"bad": "failed", "good": "running"}
    assert read_back(tmp_path / "good", ["a", "b"]) == [(1, 2), (1, 3)]
    assert read_back(tmp_path / "bad", ["a", "b"]) == []
    # It stays paused until someone resumes it.
    with opened(tmp_path / "checkpoint") as engine:
        assert "quarantined" in str(engine.query("bad").error)
        engine.resume("bad")
        engine.push("r", table((1, 4, 0)))
    assert read_back(tmp_path / "bad", ["a", "b"]) == [(1, 4)]


def test_a_drop_before_the_start_comes_before_the_batch_that_is_computed_again(tmp_path: Path) -> None:
    unfinished(tmp_path)
    engine = opened(tmp_path / "checkpoint")
    engine.drop("bad", wait=False)
    with engine:
        engine.push("r", table((1, 3, 0)))
        assert [info.name for info in engine.queries()] == ["good"]
    assert read_back(tmp_path / "good", ["a", "b"]) == [(1, 2), (1, 3)]
    assert read_back(tmp_path / "bad", ["a", "b"]) == []


BY_P = "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 5 UNITS ON x.p = y.p"


def without_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """No index by `p` can be made, as for a key that can't be encoded."""
    index = BucketRun.index

    def fails(self: BucketRun, attribute: Any) -> Any:
        if attribute is not None and "p" in str(attribute.index_key[0]):
            raise OverflowError("int too big to convert")
        return index(self, attribute)

    monkeypatch.setattr(BucketRun, "index", fails)


def test_an_index_that_cannot_be_made_pauses_its_query_and_no_later_push_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_index(monkeypatch)
    with opened(tmp_path) as engine:
        engine.create(PAIRS, name="good")
        engine.create(BY_P, name="bad")
        for moment in range(3):
            engine.push_all({"l": table((1, moment, 0)), "r": table((1, moment, 0))})
        assert (engine.query("bad").state, engine.query("good").rows, engine.error) == ("failed", 9, None)
        assert "OverflowError: int too big to convert" in str(engine.query("bad").error)
        # It fails again when it is resumed, and again alone.
        engine.resume("bad")
        engine.push("l", table((1, 9, 0)))
        assert (engine.query("bad").state, engine.query("good").rows) == ("failed", 12)
    with opened(tmp_path) as engine:
        engine.push("l", table((1, 9, 0)))
        assert (engine.query("bad").state, engine.query("good").rows, engine.error) == ("failed", 15, None)
    monkeypatch.undo()
    with opened(tmp_path) as engine:
        engine.resume("bad")
        # Tuples of the pause are joined by later ones.
        engine.push("l", table((1, 2, 0)))
        assert (engine.query("bad").state, engine.query("bad").rows) == ("running", 1)


@pytest.mark.parametrize("way", ["quarantine", "drop", "neither"])
def test_a_query_that_cannot_be_computed_again_is_past_at_the_first_start(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished(tmp_path, BY_P)
    without_index(monkeypatch)
    engine = opened(tmp_path / "checkpoint", quarantine=["bad"] if way == "quarantine" else ())
    if way == "drop":
        engine.drop("bad", wait=False)
    with engine:
        engine.push("r", table((1, 3, 0)))
        states = {info.name: info.state for info in engine.queries()}
    assert states == {"good": "running"} | ({} if way == "drop" else {"bad": "failed"})
    assert read_back(tmp_path / "good", ["a", "b"]) == [(1, 2), (1, 3)]


KILLER = """
import os, signal, sys
from datetime import datetime
from pathlib import Path
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.core.stored_stream import BucketRun
from tests.queries import test_isolation
results = Shared.results
def poisoned(self, arrived):
    if any(name == "bad" and not entry.paused for name, entry in self.queries.items()) and arrived.buckets:
        os.kill(os.getpid(), signal.SIGKILL)
    return results(self, arrived)
Shared.results = poisoned
print(test_isolation.finished(Path(sys.argv[1])))
"""


@pytest.mark.slow
def test_a_query_that_ends_the_process_ends_two_starts_and_no_third(tmp_path: Path) -> None:
    unfinished(tmp_path)
    command = [sys.executable, "-c", KILLER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.stdout.strip() == "{'bad': 'failed', 'good': 'running'}", done.stderr
    assert read_back(tmp_path / "good", ["a", "b"]) == [(1, 2), (1, 3)]
    assert not list((tmp_path / "checkpoint" / "attempts").iterdir())


def test_query_by_query_gives_the_rows_of_all_together(tmp_path: Path) -> None:
    unfinished(tmp_path)
    journal = FileJournal(str(tmp_path / "checkpoint"), "embedded")
    Attempt(journal, max(journal.numbers("batches")), {})
    journal.close()
    assert finished(tmp_path) == {"bad": "running", "good": "running"}
    for name in ("bad", "good"):
        assert read_back(tmp_path / name, ["a", "b"]) == [(1, 2), (1, 3)]
