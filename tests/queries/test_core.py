"""The ad-hoc core against the oracle and against queries that share nothing; its changes, state and errors."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamjoin.adhoc import Stream
from streamjoin.model.errors import CheckpointError, InputError, QueryError, SchemaError, SpecError, StateError
from streamjoin.queries.core import execution, row_lists
from streamjoin.queries.core.buckets import Bucket
from streamjoin.queries.core.changes import Change, Create, Drop, Pause, Resume, check_name, names_after
from streamjoin.queries.core.probe_plan import Choice, orders_of
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.core.unshared import open_core
from streamjoin.queries.optimizer.plans import Plan
from tests.oracles import adhoc_cases
from tests.queries.core_cases import lateness_of, rows_of, run_core, wanted_of
from tests.seeds import examples

SLOW = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
SCHEMA = pa.schema({"k": pa.int64(), "p": pa.int64(), "t": pa.int64()})
LEFT, RIGHT = (Stream(name, SCHEMA, "t") for name in ("l", "r"))
PAIRS = "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k"


def batch(*rows: tuple[int, int, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def core_of(*queries: str, **options: Any) -> Shared:
    core = Shared([LEFT, RIGHT], Settings(**options))
    core.apply([Create(f"q{n}", text) for n, text in enumerate(queries)])
    return core


@SLOW
@given(adhoc_cases.cases(most_queries=5), st.data())
def test_the_core_gives_what_the_oracle_says(case: adhoc_cases.AdhocCase, data: st.DataObject) -> None:
    every = data.draw(st.sampled_from([1, 2, 8]))
    replans = data.draw(st.sets(st.integers(0, len(case.batches) - 1)))
    shuffles = data.draw(st.sets(st.integers(0, len(case.batches) - 1)))

    def disturb(core: Shared, number: int) -> None:
        """Re-plan by cost at some batches; at others take any plan there is, however bad."""
        if number in replans:
            core.replan()
        if number in shuffles:
            choices = {
                name: Choice(
                    data.draw(st.integers(0, 2)),
                    tuple(data.draw(st.sampled_from(orders_of(entry.query, a))) for a in entry.query.aliases),
                )
                for name, entry in core.queries.items()
            }
            core.adopt(Plan(choices))

    chosen = Settings(lateness=lateness_of(case), replan_every=every, hysteresis=0.0)
    assert run_core(case, chosen, disturb) == wanted_of(case)


@settings(SLOW, max_examples=examples(25))
@given(adhoc_cases.cases(most_queries=4), st.sampled_from(["nothing", "everything"]))
def test_other_ways_to_share_give_the_same(case: adhoc_cases.AdhocCase, sharing: Any) -> None:
    assert run_core(case, Settings(sharing=sharing, lateness=lateness_of(case))) == wanted_of(case)


@settings(SLOW, max_examples=examples(25))
@given(adhoc_cases.cases(most_queries=6))
def test_threads_give_the_same_rows(case: adhoc_cases.AdhocCase) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (execution, row_lists):
            patch.setattr(module, "_WORTH_THREADS", 0)
        chosen = Settings(lateness=lateness_of(case), threads=3, replan_every=2, hysteresis=0.0)
        assert run_core(case, chosen) == wanted_of(case)


@settings(SLOW, max_examples=examples(25))
@given(adhoc_cases.cases(), st.data())
def test_a_core_goes_on_from_a_snapshot_and_from_stored_buckets(
    case: adhoc_cases.AdhocCase, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(case.batches) - 1))
    held: list[Any] = []

    def stop(core: Shared, number: int) -> None:
        if number == at:
            taken = core.snapshot()
            stored = {
                name: tuple(Bucket.from_table(bucket.to_table()) for bucket in buckets)
                for name, buckets in taken.buckets.items()
            }
            held.append(taken)
            core.restore(pickle.loads(pickle.dumps(replace(taken, buckets=stored))))

    assert run_core(case, Settings(lateness=lateness_of(case)), stop) == wanted_of(case)
    assert held


def test_more_queries_than_a_word_has_bits() -> None:
    texts = [f"{PAIRS} WHERE x.p >= {n} AND y.p < {200 - n}" for n in range(150)]
    core = core_of(*texts)
    found = core.process(0, {"l": batch((1, 70, 0), (1, 140, 0)), "r": batch((1, 100, 1), (2, 0, 1))})
    for n in range(150):
        wanted = {(p, 100): 1 for p in (70, 140) if p >= n and n < 100}
        assert dict(rows_of(found[f"q{n}"])) == wanted
    assert [len(step.queries) for root in core._execution.first_joins for step in root.directions] == [150, 150]


def test_queries_that_are_the_same_share_a_bit_and_live_their_own_lives() -> None:
    core = core_of(PAIRS, PAIRS, PAIRS + " WHERE x.p > 0")
    found = core.process(0, {"l": batch((1, 0, 0), (1, 1, 0)), "r": batch((1, 10, 0))})
    assert found["q0"] is found["q1"] and found["q0"].num_rows == 2 and found["q2"].num_rows == 1
    (first_join,) = core._execution.first_joins
    assert first_join.forward.queries == ("q0", "q1", "q2")
    assert int(first_join.forward.mask[0]).bit_count() == 2
    core.apply([Drop("q0"), Pause("q1"), Create("q3", PAIRS)])
    found = core.process(1, {"r": batch((1, 20, 1))})
    assert {name: rows.num_rows for name, rows in found.items()} == {"q1": 0, "q2": 1, "q3": 0}
    core.apply([Resume("q1"), Create("q0", PAIRS)])
    found = core.process(2, {"l": batch((1, 2, 2)), "r": batch((1, 30, 2))})
    # q1 has seen all, q3 the tuples from batch 1 on, q0 from batch 2 on.
    assert {name: rows.num_rows for name, rows in found.items()} == {"q1": 5, "q2": 4, "q3": 2, "q0": 1}


def test_a_pause_gives_no_rows_and_keeps_tuples() -> None:
    core = core_of(PAIRS)
    core.process(0, {"l": batch((1, 0, 0))})
    core.apply([Pause("q0")])
    assert not core.process(1, {"l": batch((1, 1, 1)), "r": batch((1, 10, 1))})["q0"].num_rows
    core.apply([Resume("q0")])
    assert set(rows_of(core.process(2, {"r": batch((1, 20, 2))})["q0"])) == {(0, 20), (1, 20)}


def test_late_tuples_and_tuples_without_a_time_are_set_aside() -> None:
    core = core_of(PAIRS, lateness=2)
    untimed = pa.table({"k": [1], "p": [7], "t": pa.array([None], pa.int64())}, SCHEMA)
    core.process(0, {"l": batch((1, 0, 9)), "r": untimed})
    assert core.report.untimed["r"]["p"].to_pylist() == [7]
    core.process(1, {"l": batch((1, 1, 7), (1, 2, 6))})
    assert core.report.late["l"]["p"].to_pylist() == [2]
    assert set(rows_of(core.process(2, {"r": batch((1, 10, 8))})["q0"])) == {(0, 10), (1, 10)}
    assert not core.report.late


@pytest.mark.parametrize("sharing", ["cost", "nothing"])
def test_lateness_is_of_the_stream_and_not_of_the_query(sharing: Any) -> None:
    core = open_core([LEFT, RIGHT], Settings(sharing=sharing))
    core.process(0, {"l": batch((1, 0, 100))})
    core.apply([Create("q", PAIRS)])
    core.process(1, {"l": batch((1, 1, 50)), "r": batch((1, 10, 50))})
    assert core.report.late["l"].num_rows == 1


def test_buckets_go_when_no_window_reaches_them() -> None:
    core = core_of(PAIRS)
    for number in range(40):
        core.process(number, {"l": batch((1, number, number)), "r": batch((1, number, number))})
        assert all(len(held) <= 7 for held in core.snapshot().buckets.values())
    core.apply([Drop("q0")])
    core.process(40, {})
    assert not any(core.snapshot().buckets.values())
    assert not any(core.nbytes.values())


@pytest.mark.parametrize("within", ["9 UNITS", "9 ROWS"])
def test_a_tuple_waits_for_one_that_waits(within: str) -> None:
    core = Shared([LEFT, RIGHT, Stream("n", SCHEMA, "t")])
    joins = f"JOIN r y WITHIN 1 UNITS ON x.k = y.k JOIN n z WITHIN {within} ON z.p = x.p"
    core.apply([Create("q", f"SELECT x.p AS a, y.p AS b, z.p AS c FROM l x {joins}")])
    core.process(0, {"l": batch((1, 5, 0)), "r": batch((1, 3, 1))})
    for number in range(1, 9):
        core.process(number, {name: batch((0, 0, number)) for name in "lr"})
    # The window between y and x is long over; what keeps y is that x waits for z.
    assert set(rows_of(core.process(9, {"n": batch((7, 5, 9))})["q"])) == {(5, 3, 5)}
    for number in range(10, 60):
        core.process(number, {name: batch((0, 0, number)) for name in "lrn"})
    assert all(len(held) <= 12 for held in core.snapshot().buckets.values())


def test_a_failing_query_is_paused_and_the_others_go_on() -> None:
    core = core_of("SELECT x.p * y.p AS product FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k", PAIRS)
    found = core.process(0, {"l": batch((1, 2**62, 0)), "r": batch((1, 4, 0))})
    assert list(core.report.failures) == ["q0"]
    assert [found[name].num_rows for name in ("q0", "q1")] == [0, 1]
    assert core.queries["q0"].paused and not core.queries["q1"].paused


def test_changes_are_made_in_order_and_all_or_none() -> None:
    core = core_of(PAIRS)
    core.apply([Drop("q0"), Create("q0", PAIRS + " WHERE x.p > 0")])
    for changes, error in (
        ([Create("new", PAIRS), Drop("nobody")], SpecError),
        ([Create("q0", PAIRS)], SpecError),
        ([Create("new", PAIRS), Create("bad", "SELECT nonsense")], QueryError),
        ([Pause("nobody")], SpecError),
        ([Create("", PAIRS)], SpecError),
    ):
        with pytest.raises(error):
            core.apply(changes)
    assert list(core.queries) == ["q0"]
    assert core.process(0, {"l": batch((1, 0, 0), (1, 1, 0)), "r": batch((1, 3, 0))})["q0"].num_rows == 1


def test_batches_ascend_and_fit_their_stream() -> None:
    core = core_of(PAIRS)
    core.process(3, {"l": batch((1, 0, 0))})
    with pytest.raises(StateError, match="batches ascend"):
        core.process(3, {})
    for tables in (
        {"nobody": batch((1, 0, 0))},
        {"l": pa.table({"k": [1]})},
        {"l": batch((1, 0, 0)).set_column(0, "k", pa.array(["x"]))},
        {"l": batch((1, 0, 0)).to_pylist()},
    ):
        with pytest.raises(InputError):
            core.process(4, tables)  # type: ignore[arg-type]
    assert core.process(4, {"r": batch((1, 1, 0))})["q0"].num_rows == 1, "a refused batch left no trace"


def test_a_stream_may_come_later() -> None:
    core = core_of(PAIRS)
    with pytest.raises(StateError):
        core.add_stream(LEFT)
    core.add_stream(Stream("n", SCHEMA, "t"))
    core.apply([Create("late", "SELECT x.p AS a FROM l x JOIN n y WITHIN 2 ROWS ON x.k = y.k")])
    assert core.process(0, {"l": batch((1, 0, 0)), "n": batch((1, 5, 1))})["late"].num_rows == 1


def test_settings_refuse_what_they_cannot_be() -> None:
    for wrong in ({"sharing": "some"}, {"replan_every": 0}, {"hysteresis": 2.0}, {"rebuild_share": -1.0}):
        with pytest.raises(SpecError):
            Settings(**wrong)  # type: ignore[arg-type]
    for lateness in ("5 seconds", -1, True):
        with pytest.raises(SpecError):
            Shared([LEFT], Settings(lateness=lateness))
    clock = Stream("c", pa.schema({"t": pa.timestamp("us")}), "t")
    with pytest.raises(SchemaError, match="duration"):
        Shared([clock], Settings(lateness={"c": 5}))
    assert Settings(lateness={"c": "1 ms"}).lateness_of(clock) == 10**6


def test_reading_queries_loads_neither_kernels_nor_spark() -> None:
    program = (
        "import sys, streamjoin.adhoc as adhoc\n"
        "from streamjoin.queries.language.sql import parse\n"
        "assert not {'numba', 'pyspark'} & set(sys.modules)\n"
        "assert adhoc.__all__ == sorted(adhoc.__all__)\n"
        "for name in adhoc.__all__: getattr(adhoc, name)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_table_that_is_no_bucket_is_refused() -> None:
    with pytest.raises(CheckpointError):
        Bucket.from_table(batch((1, 1, 1)))


def test_names_of_queries_are_unique_and_printable() -> None:
    names = names_after({"a", "b"}, [Drop("a"), Create("c", "SELECT"), Pause("b"), Drop("nowhere")])
    assert names == {"b", "c"}
    for fitting in (Create("a", "SELECT"), Drop("b"), Pause("c"), Resume("c")):
        check_name(fitting, names)
    refused: list[tuple[Change, str]] = [
        (Create("b", "SELECT"), "there is a query 'b' already"),
        (Create("", "SELECT"), "printable"),
        (Create("a\x00", "SELECT"), "printable"),
        (Drop("a"), "there is no query 'a'; there are: b, c"),
        (Resume("a"), "there is no query 'a'"),
    ]
    for change, said in refused:
        with pytest.raises(SpecError, match=said):
            check_name(change, names)
