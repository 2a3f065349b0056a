"""A micro-batch that is more than a batch should take: handed in over several, also across restarts."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from streamjoin.adhoc import Engine, MemorySink, Settings
from streamjoin.queries.core.budgets import EngineBudget
from tests.spark.adhoc_streams import PAIRS, FileStream, engine_on

pytestmark = pytest.mark.spark
SAME = PAIRS.replace("x.k = y.k", "x.p = y.p")


def test_a_large_micro_batch_is_cut_and_a_restart_goes_on_within_it(spark: Any, tmp_path: Path) -> None:
    for name in ("l", "r"):
        # The latest first.
        FileStream(tmp_path / name).rows(*((1, n, n / 10) for n in reversed(range(500))))
    found: Counter[int] = Counter()
    starts = late = 0
    done = False
    while not done and starts < 20:
        engine = Engine(spark, tmp_path / "checkpoint", Settings(batch_rows=100), executor="driver")
        for name in ("l", "r"):
            # A shuffle may give the rows of a micro-batch in another order the next time.
            engine.register(name, FileStream(tmp_path / name).frame(spark).repartition(3))
        first = threading.Event()
        sizes: list[int] = []

        def follow(event: Any, first: threading.Event = first, sizes: list[int] = sizes) -> None:
            sizes.extend(event.rows_in.values())
            if any(event.rows_in.values()):
                first.set()

        engine.on_batch(follow)
        if not starts:
            engine.create(SAME, "q", MemorySink(10_000))
        engine.start()
        assert first.wait(120)
        engine.stop()
        starts += 1
        assert max(sizes) <= 100
        found.update(engine.rows("q", 10_000).column("a").to_pylist())
        late = sum(stream.late for stream in engine.streams())
        done = engine.metrics().rows_in == 1000
    assert starts > 1 and not late and found == Counter(range(500))


def test_cells_have_equal_parts_of_the_engines_budget(spark: Any, tmp_path: Path) -> None:
    streams = {name: FileStream(tmp_path / name) for name in ("l", "r")}
    with engine_on(spark, tmp_path, engine_bytes=40_000) as engine:
        engine.create(PAIRS, "large")
        engine.create(f"{PAIRS} WHERE x.p = 1", "small")
        for stream in streams.values():
            stream.rows(*((n % 4, n, 1.0) for n in range(100)))
        engine.process_all_available()
        engine.process_all_available()
        states = {query.name: query.state for query in engine.queries()}
        assert states == {"large": "failed", "small": "running"} and engine.query("small").rows == 25
        assert "engine's budget of 20 kB" in str(engine.query("large").error)


def test_the_budget_of_an_engine_is_shared_equally() -> None:
    assert EngineBudget(9, 100, 1000).shared_by(3) == EngineBudget(3, 33)
