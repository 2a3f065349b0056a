"""Sources that feed ScaleGate themselves: concurrently, by the gate's rules, with room and places that come back."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.joins.engine.push_plan import PushPlan
from streamjoin.joins.live.driven import DrivenRunner
from streamjoin.joins.live.running import FlowRunner
from streamjoin.model.errors import BackPressureError, StateError
from streamjoin.scalejoin import inlets, lines
from streamjoin.scalejoin import live_gate as gated
from streamjoin.scalejoin.kernels import members
from streamjoin.scalejoin.kernels.nodes import N_SOURCES, NIL
from streamjoin.scalejoin.kernels.rings import SIDE, feed
from streamjoin.testing.clock import ManualClock
from tests.deadlock import no_deadlock
from tests.joins.gated_runs import SPEC, TYPES, check, intake_of, opened, rows_of
from tests.seeds import FRESH, examples
from tests.threads import YIELDS_FORCED, check_that_runs_hold


def test_threads_that_push_at_once_give_the_rows_of_push() -> None:
    """Eight sources in eight threads; disorder within the lateness, late rows, NULLs, rings that fill."""
    with no_deadlock():
        check(runs=4, seed=1)


def test_a_collector_that_falls_behind_delivers_every_row_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads have found more matches than it reads at once: those that it leaves are not complete."""
    monkeypatch.setattr(gated, "_BLOCK", 64)
    with no_deadlock():
        check(runs=3, seed=2)


def test_small_joins_of_every_kind_give_the_rows_of_push(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every condition, index and window, also of self-joins; arrays grow and shares move up within a run."""
    monkeypatch.setattr(gated, "_LEAST_SHARE", 2)
    monkeypatch.setattr(gated, "_LEAST_PAIRS", 2)
    with no_deadlock():
        check(examples(60), FRESH + 3, n=60)


def test_text_that_no_batch_holds_is_encoded_column_by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 100)
    with no_deadlock():
        check(examples(20), FRESH + 4, n=60)
        # Of a text and a number the index has a word of its own.
        check(6, FRESH + 5, n=60, conditions=[sj.Equi("w") & sj.Band("x", "x", 2)])


@pytest.mark.parametrize("window", [sj.CountWindow(100), sj.TimeWindow(100)])
@pytest.mark.parametrize("index", [None, "btree"])
def test_a_side_alone_keeps_no_more_than_its_window(window: sj.CountWindow | sj.TimeWindow, index: str | None) -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=window, time="t", order="event_time")
    with no_deadlock(), opened(spec, index=index, queue_rows=1 << 12) as join:
        flow = intake_of(join)._flow
        reader = join.consumer()
        left, right = join.source("left"), join.source("right")
        left.push(rows_of([0]))
        left.finish()
        sizes = []
        for begin in range(0, 40_000, 2_000):
            right.push(rows_of(range(begin, begin + 2_000)))
            right.advance(begin + 2_000)
            while (reader.time or 0) < begin + 1_999:
                next(reader.batches())
            shares = sum(column.nbytes for own in flow._scans for column in own.share)
            sizes.append(shares + flow._shares.nbytes)
        join.stop()
    assert max(sizes) <= 1.5 * sizes[1]


@pytest.mark.parametrize(
    ("on", "index", "fed"),
    [
        (sj.Equi("k") & sj.Band("x", "x", 2) & sj.Band("id", "id", 3), None, True),
        (sj.Theta("l.x < r.x"), None, True),
        (sj.Equi("z"), None, True),
        (sj.Equi("k"), "hashed", True),
        (sj.Equi("k") & sj.Theta("l.z like 'a%'"), "btree", True),
        (sj.Theta("l.z < r.z"), None, False),
    ],
)
@pytest.mark.parametrize("self_join", [False, True])
def test_which_joins_their_sources_feed(on: Any, index: str | None, fed: bool, self_join: bool) -> None:
    """The others, and all in arrival order, run behind the driver thread."""
    known = {"left_schema": TYPES} if self_join else {"left_schema": TYPES, "right_schema": TYPES}
    for order in ("event_time", "arrival"):
        spec = sj.JoinSpec(on=on, window=sj.CountWindow(9), time="t", order=order, self_join=self_join)  # type: ignore[arg-type]
        with sj.live(spec, "scalejoin", 2, index=index, **known) as join:
            wanted = FlowRunner if fed and order == "event_time" else DrivenRunner
            assert isinstance(join._runner, wanted)
            join.stop()


@pytest.mark.slow
@pytest.mark.thorough
def test_they_do_with_yields_forced_at_every_shared_access() -> None:
    check_that_runs_hold(YIELDS_FORCED, "tests.joins.gated_runs", "3", "2")


def test_a_push_that_takes_long_holds_up_no_other_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lock is around encoding and adding: while one source is in a push, others push and are joined."""
    entered, leave = threading.Event(), threading.Event()
    encode = PushPlan.encode_side

    def slow(self: object, side: int, rows: pa.Table) -> object:
        if rows["id"][0].as_py() == 99:
            entered.set()
            assert leave.wait(60)
        return encode(self, side, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(PushPlan, "encode_side", slow)
    with no_deadlock(), opened() as join:
        # The slow source is at time 1,000 already, so the gate does not wait for it.
        left, right, other = join.source("left", "a"), join.source("right", "a"), join.source("left", "slow")
        other.push(rows_of([1_000], first=50))
        thread = threading.Thread(target=other.push, args=(rows_of([1_001], first=99),))
        thread.start()
        assert entered.wait(60)
        left.push(rows_of([10, 20]))
        right.push(rows_of([10, 20]))
        left.advance(30)
        right.advance(30)
        assert len(next(iter(join))) > 0
        leave.set()
        thread.join()
        join.stop()


def test_encoding_and_adding_need_no_interpreter() -> None:
    assert feed.targetoptions["nogil"]  # type: ignore[attr-defined]
    with opened() as join:
        intake_of(join)
        join.stop()


def test_one_thread_may_push_more_than_the_rings_hold() -> None:
    """What finds no room waits, in order, until the other side has come as far."""
    n = 3 * inlets.RING
    with no_deadlock(), opened() as join:
        left, right = join.source("left"), join.source("right")
        for source in (left, right):
            source.push(rows_of(range(n), first=0))
            source.push(rows_of(range(n, n + 10), first=n))
            source.finish()
        again = join.source("left")
        again.push(rows_of([n + 9], first=n + 20))
        join.close()
        ids = [
            pair
            for rows in join
            for pair in zip(rows["id_left"].to_pylist(), rows["id_right"].to_pylist(), strict=True)
        ]
    assert len(ids) == len(set(ids))
    assert {(i, i) for i in range(n + 10)} <= set(ids)
    assert (n + 20, n + 9) in ids


def test_a_full_gate_refuses_all_but_the_source_it_waits_for() -> None:
    with no_deadlock(), opened(queue_rows=100) as join:
        ahead, behind = join.source("left", "ahead"), join.source("right", "behind")
        with pytest.raises(BackPressureError, match="in the gate, which waits for source 'behind'"):
            for begin in range(0, 1_000, 10):
                ahead.push(rows_of(range(begin, begin + 10)), timeout=0.05)
        for begin in range(0, 100, 10):
            behind.push(rows_of(range(begin, begin + 10)), timeout=120)
        ahead.push(rows_of([1_000]), timeout=120)
        join.stop()


@pytest.mark.parametrize("algorithm", ["scalejoin", "sweep"])
def test_one_thread_may_push_any_source_at_the_time_that_a_full_gate_waits_for(algorithm: str) -> None:
    """A source that opens at the time of another of the same thread: neither has to go first."""
    with no_deadlock(), sj.live(SPEC, algorithm, left_schema=TYPES, right_schema=TYPES, queue_rows=100) as join:
        first, ahead = join.source("left", "a"), join.source("right", "ahead")
        batches = join.batches()
        first.push(rows_of([10]))
        with pytest.raises(BackPressureError, match="no room"):
            for begin in range(10, 1_000, 10):
                ahead.push(rows_of(range(begin, begin + 10)), timeout=0.05)
        while next(batches).time != 10:
            pass
        visitor = join.source("left", "visitor")
        visitor.push(rows_of([11]), timeout=120)
        first.push(rows_of([12]), timeout=120)
        join.stop()


def test_a_slow_consumer_slows_sources_that_the_gate_waits_for_in_turn() -> None:
    """The source that is behind may push into a full gate, but not while what is ready has not been taken."""
    with no_deadlock(), opened(queue_rows=2_000, result_rows=10) as join:
        left, right = join.source("left"), join.source("right")
        consumer = join.consumer()
        with pytest.raises(BackPressureError, match="no room"):
            for begin in range(0, 1_000_000, 100):
                for source in (left, right):
                    source.push(rows_of(range(begin, begin + 100)), timeout=0.2)
        # Rings, both gates and one push per source beside the limit.
        assert join.metrics()["waiting"] <= 2_000 + 200
        next(consumer)
        join.stop()


def test_resting_sources_hold_nobody_up_and_wake_behind_the_bound() -> None:
    clock = ManualClock()
    with no_deadlock(), opened(idle="1 second", clock=clock) as join:
        left, right = join.source("left", "a"), join.source("right", "b")
        batches = join.batches()

        def reach(time: int) -> None:
            while not (batch := next(batches)).time or batch.time < time:
                pass

        left.push(rows_of([10, 40]))
        right.push(rows_of([20]))
        reach(20)
        clock.turn(0.9)
        left.push(rows_of([50, 60]))
        clock.turn(0.2)
        # The right source rests: the bound is the left one's clock.
        reach(60)
        right.push(rows_of([55, 59, 60, 61]))
        left.push(rows_of([70]))
        right.advance(70)
        reach(70)
        assert join.late()["t_right"].to_pylist() == [55, 59]
        clock.turn(2)
        join.close()
        assert join.wait(120)
        join.stop()


def test_sources_that_come_and_go_use_the_places_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inlets, "MOST_SOURCES", 6)
    with no_deadlock(), opened() as join:
        right = join.source("right")
        batches = join.batches()
        places = intake_of(join)._inlets
        for visit in range(300):
            # Names rise, fall, and lie between each other.
            with join.source("left", f"visitor {visit if visit < 150 else -visit}") as visitor:
                visitor.push(rows_of([visit]))
            right.advance(visit + 1)
            right.push(rows_of([visit + 1]))
            if visit % 30 == 29:
                # Visitors wait for the places of those before them as long as their tuples are in the gate.
                while not (batch := next(batches)).time or batch.time < visit:
                    pass
        assert places.mem[N_SOURCES] <= 7
        # The last ones that could wait for a place, those that have one, the right source and the bound's.
        assert len(places._order._ranks) <= 30 + 7 + 2
        sources = []
        with pytest.raises(StateError, match="6 sources are open, as many"):
            sources += [join.source("left", f"guest {n}") for n in range(8)]
        join.close()
        for _ in batches:
            pass
        assert join.metrics()["pushed_left"] == 300


def test_names_order_equal_times_however_they_are_opened() -> None:
    """Ranks between those that are there, before and behind them."""
    rng = np.random.default_rng(5)
    names = [f"{n:03d}" for n in range(60)]
    ids = []
    for order in (names, names[::-1], rng.permutation(names).tolist()):
        with no_deadlock(), opened() as join:
            sources = {name: join.source("left", name) for name in order}
            right = join.source("right", "r")
            for name in names:
                sources[name].push(rows_of([7], first=int(name)))
            right.push(rows_of([8], first=500))
            join.close()
            ids.append([i for rows in join for i in rows["id_left"].to_pylist()])
    assert ids == [list(range(60))] * 3


def test_an_error_in_a_sources_thread_ends_the_join(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("injected")

    with no_deadlock(), pytest.raises(StateError, match="injected"), opened() as join:
        source = join.source("left")
        monkeypatch.setattr(PushPlan, "encode_side", fail)
        with pytest.raises(StateError, match="MemoryError: injected"):
            source.push(rows_of([1]))
        list(join)


@pytest.mark.parametrize("name", ["scan", "copy_out", "await_results"])
def test_an_error_in_a_thread_reaches_everybody(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("injected")

    monkeypatch.setattr(gated, name, fail)
    with no_deadlock(), pytest.raises(StateError, match="injected"), opened() as join:
        left, right = join.source("left"), join.source("right")
        with pytest.raises(StateError, match="injected"):
            for t in range(100_000):
                left.push(rows_of([t]))
                right.push(rows_of([t]))
        list(join)


def test_groups_with_more_pairs_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gated, "_LEAST_PAIRS", 4)
    monkeypatch.setattr(gated, "_LEAST_SHARE", 1 << 9)
    with (
        no_deadlock(),
        opened(spec=sj.JoinSpec(on=sj.Band("x", "x", 1e9), window=SPEC.window, time="t", order="event_time")) as join,
    ):
        left, right = join.source("left"), join.source("right")
        for begin in range(0, 2_000, 500):
            for source in (left, right):
                source.push(rows_of(range(begin, begin + 500), first=begin))
        join.close()
        pairs = [
            pair
            for rows in join
            for pair in zip(rows["id_left"].to_pylist(), rows["id_right"].to_pylist(), strict=True)
        ]
    wanted = {(a, b) for a in range(2_000) for b in range(max(0, a - 20), min(2_000, a + 21))}
    assert len(pairs) == len(wanted)
    assert set(pairs) == wanted


@pytest.mark.parametrize("type_", [pa.binary(20), pa.large_string(), pa.decimal128(30, 2), pa.bool_()])
def test_rows_of_any_width_travel_by_number(type_: pa.DataType) -> None:
    """Rings of few places, sources that come and go, and values that end with another length than they began."""
    kinds: dict[pa.DataType, list[Any]] = {pa.bool_(): [True, None], pa.binary(20): [b"z" * 20, None]}
    values = kinds.get(type_, ["7" * 20, None, "1"])
    types = TYPES.append(pa.field("wide", type_))
    n = 2 * inlets.RING

    def rows(begin: int, end: int) -> pa.Table:
        cells = pa.array([values[i % len(values)] for i in range(begin, end)])
        return rows_of(range(begin, end), first=begin).append_column(types.field("wide"), cells.cast(type_))

    spec = sj.JoinSpec(on=sj.Band("t", "t", 0), window=sj.CountWindow(100), time="t", order="event_time")
    with no_deadlock(), sj.live(spec, "scalejoin", 3, left_schema=types, right_schema=types) as join:
        intake_of(join)
        for begin, end in ((0, n), (n, n + 3), (n + 3, n + 500)):
            sources = join.source("left"), join.source("right")
            for source in sources:
                source.push(rows(begin, end))
                source.finish()
        join.close()
        found = pa.Table.from_batches(list(join))
    wanted = rows(0, n + 500)
    for side in ("left", "right"):
        for name in ("id", "z", "b", "wide"):
            assert found[f"{name}_{side}"].combine_chunks() == wanted[name].combine_chunks(), name


def test_a_source_that_comes_again_is_waited_for_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its earlier tuples and their end still wait for room: no others pass it between that end and its new begin."""
    finish = members.finish
    came: list[bool] = []

    def finished(mem: Any, slot: int) -> None:
        inlet = own._inlets.get((0, ""))
        if not own.sources[slot][SIDE]:
            came.append(inlet is not None and inlet.slot not in (NIL, slot))
        finish(mem, slot)

    n = 2 * inlets.RING
    with no_deadlock(), opened() as join:
        own = intake_of(join)._inlets
        monkeypatch.setattr(members, "finish", finished)
        for begin in (0, n):
            source = join.source("left")
            source.push(rows_of(range(begin, begin + n), first=begin))
            source.finish()
        # Nothing was ready before.
        right = join.source("right")
        right.push(rows_of([4 * n]))
        right.finish()
        join.close()
        assert join.late().num_rows == 0
    assert came == [True, False]


def test_much_text_counts_for_the_limit_of_bytes() -> None:
    with no_deadlock(), opened(queue_bytes=1 << 20) as join:
        intake_of(join)
        ahead, _ = join.source("left"), join.source("right", "behind")
        text = pa.array(["z" * 50_000] * 10)
        with pytest.raises(BackPressureError, match="waits for source 'behind'"):
            for begin in range(0, 100, 10):
                ahead.push(rows_of(range(begin, begin + 10)).set_column(0, "z", text), timeout=0.05)
        join.stop()


def test_sources_come_while_bytes_are_counted() -> None:
    own = inlets.GateInlets.__new__(inlets.GateInlets)
    rings: dict[Any, Any] = {}
    own._rings = rings
    block = SimpleNamespace(block=SimpleNamespace(nbytes=5))

    class Lines:
        @property
        def nbytes(self) -> int:
            rings[len(rings), 0] = np.zeros(1), block
            return 1

    rings[0, 0] = rings[1, 0] = Lines(), block
    assert own.nbytes == 2 * (1 + 1 + 5)
    assert len(rings) == 6
