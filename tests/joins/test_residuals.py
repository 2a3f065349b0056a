"""Residuals that kernels test: the same rows at every door and by every algorithm, also where numbers leave int64."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.joins.batch import nested_loop
from tests.deadlock import no_deadlock
from tests.joins.live_runs import read_all
from tests.threads import run_threads

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("t", pa.int64()),
        ("k", pa.int32()),
        ("x", pa.int64()),
        ("f", pa.float64()),
        ("z", pa.string()),
    ]
)
LARGE = 2**63 - 1
ALGORITHMS = ("nested_loop", "scalejoin", "handshake", "low_latency_handshake")
Row = dict[str, Any]


@pytest.fixture(autouse=True)
def compiles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tests from the first pair on."""
    monkeypatch.setattr(nested_loop, "COMPILING_PAYS", 0)


def test_the_kernel_is_compiled_once_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, and from the first number on that is too large for it, the residual is evaluated tile by tile."""
    asked: list[bool] = []

    def tiles(*given: Any) -> Any:
        asked.append(True)
        return real(*given)

    real = nested_loop.NestedLoop.tiles
    monkeypatch.setattr(nested_loop.NestedLoop, "tiles", tiles)
    monkeypatch.setattr(nested_loop, "COMPILING_PAYS", 500)
    monkeypatch.setattr(nested_loop, "is_compiled", lambda _: False)
    spec = sj.JoinSpec(on=sj.Theta("l.x * r.x > 4"), window=sj.CountWindow(40))
    used = []
    with sj.open(spec, "nested_loop", left_schema=SCHEMA, right_schema=SCHEMA) as join:
        for seed, extremes in ((1, 0.0), (2, 0.0), (3, 1.0), (4, 0.0)):
            sides = rows_of(seed, False, 30, extremes), rows_of(seed, True, 30, extremes)
            asked.clear()
            join.push(*map(tables, sides))
            used.append(bool(asked))
    assert used == [True, False, False, True]


def rows_of(seed: int, right: bool, n: int, extremes: float) -> list[Row]:
    rng = np.random.default_rng([seed, right])
    rows = []
    for i in range(n):
        x = int(rng.integers(-9, 10)) if rng.random() > extremes else int(rng.choice([LARGE, -LARGE - 1, 2**40]))
        row: Row = {"id": i, "t": 2 * i + right, "k": int(rng.integers(0, 3)), "x": x, "f": float(rng.integers(-9, 10))}
        row["z"] = f"text {i % 7}"
        rows.append({name: None if name in "xfz" and rng.random() < 0.1 else cell for name, cell in row.items()})
    return rows


def holds(l: Row, r: Row) -> bool:
    if None in (l["x"], r["x"], l["f"], r["f"]):
        return False
    return bool(l["x"] * r["x"] + abs(l["x"] - r["x"]) > 20 and l["f"] - r["f"] < 5.0)


CONDITION = "l.x * r.x + abs(l.x - r.x) > 20 and l.f - r.f < 5"
SPECS = {
    "residual": (sj.Theta(CONDITION), holds),
    "key and residual": (sj.Equi("k") & sj.Theta(CONDITION), lambda l, r: l["k"] == r["k"] and holds(l, r)),
    "text": (
        sj.Theta("l.z = r.z and l.k < r.k"),
        lambda l, r: None not in (l["z"], r["z"]) and l["z"] == r["z"] and l["k"] < r["k"],
    ),
}


def wanted(sides: tuple[list[Row], list[Row]], match: Any, window: int) -> list[tuple[int, int]]:
    """Both sides in turn, the last `window` tuples of each: in result order."""
    pairs = []
    for place in range(2 * len(sides[0])):
        side, number = place % 2, place // 2
        for other in range(max(0, number + side - window), number + side):
            l, r = (other, number) if side else (number, other)
            if match(sides[0][l], sides[1][r]):
                pairs.append((l, r))
    return pairs


def tables(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", SPECS)
def test_rows_are_the_same_at_every_door(algorithm: str, name: str) -> None:
    on, match = SPECS[name]
    for seed, extremes, order in ((1, 0.0, "event_time"), (2, 0.2, "event_time"), (3, 0.2, "arrival")):
        sides = rows_of(seed, False, 90, extremes), rows_of(seed, True, 90, extremes)
        spec = sj.JoinSpec(on=on, window=sj.CountWindow(40), time="t", order=order)  # type: ignore[arg-type]
        expected = wanted(sides, match, 40)
        assert expected
        left, right = map(tables, sides)
        with no_deadlock(), sj.open(spec, algorithm, 2) as join:
            turns = pa.array([False, True] * 90)
            found = join.push(left, right, interleave=turns if order == "arrival" else None)
            rest = join.close()
        pushed = pa.concat_tables([found, rest]) if rest.num_rows else found
        assert list(zip(pushed["id_left"].to_pylist(), pushed["id_right"].to_pylist(), strict=True)) == expected
        if order == "event_time":
            assert by_sources(spec, algorithm, left, right, seed) == expected


def by_sources(spec: sj.JoinSpec, algorithm: str, left: pa.Table, right: pa.Table, seed: int) -> list[Any]:
    """The pairs that a live join gives for two sources in threads of their own."""
    rng = np.random.default_rng(seed)
    with no_deadlock(), sj.live(spec, algorithm, 3, left_schema=SCHEMA, right_schema=SCHEMA) as join:
        sources = join.source("left"), join.source("right")

        def feed(source: Any, table: pa.Table, cuts: list[int]) -> None:
            for begin, end in zip([0, *cuts], [*cuts, table.num_rows], strict=True):
                source.push(table.slice(begin, end - begin))
            source.finish()

        cuts = [sorted(rng.integers(0, 90, 6).tolist()) for _ in sources]
        run_threads([partial(feed, *one) for one in zip(sources, (left, right), cuts, strict=True)])
        join.close()
        return read_all(join)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_self_join_by_a_residual(algorithm: str) -> None:
    rows = rows_of(5, False, 120, 0.1)
    spec = sj.JoinSpec(on=sj.Theta(CONDITION), window=sj.CountWindow(30), self_join=True)
    with sj.open(spec, "nested_loop") as join:
        expected = join.push(tables(rows))
    found = {
        (l, r)
        for l in range(120)
        for r in range(max(0, l - 29), min(120, l + 30))
        if l != r and holds(rows[l], rows[r])
    }
    assert set(zip(expected["id_left"].to_pylist(), expected["id_right"].to_pylist(), strict=True)) == found
    with no_deadlock(), sj.open(spec, algorithm, 2) as join:
        assert join.push(tables(rows)) == expected


@pytest.mark.parametrize("algorithm", ["scalejoin", "low_latency_handshake"])
def test_a_join_by_a_residual_stops_in_the_middle(algorithm: str) -> None:
    """However far the threads have come, `stop` ends them, and sources that wait for room."""
    spec = sj.JoinSpec(on=sj.Theta("l.k >= 0 and l.f + r.f > -100"), window=sj.CountWindow(500), order="arrival")
    with (
        no_deadlock(),
        sj.live(spec, algorithm, 5, left_schema=SCHEMA, right_schema=SCHEMA, result_rows=100, queue_rows=200) as join,
    ):
        sources = join.source("left"), join.source("right")
        began = threading.Semaphore(0)

        def feed(number: int) -> None:
            batch = tables(rows_of(number, bool(number), 50, 0.0))
            with pytest.raises(sj.StateError):
                while True:
                    sources[number].push(batch)
                    began.release()

        threads = [threading.Thread(target=feed, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            began.acquire()
        join.stop()
        for thread in threads:
            thread.join()
