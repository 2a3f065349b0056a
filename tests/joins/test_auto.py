"""`auto` begins by scanning and moves on: when it does, and that no row notices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.joins import auto
from streamjoin.joins.cost import Found
from streamjoin.joins.engine.adapting import MeasuredCosts
from streamjoin.joins.registry import AlgorithmChoice
from streamjoin.model.binding import bind
from streamjoin.testing import cases as generate
from streamjoin.testing.conformance import IdPair, algorithms_for, run_arrival, run_event_time
from tests.oracles.expected import expected

RELAXED = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
TARGETS = st.integers(0, 8)
SPEC = sj.JoinSpec(on=sj.Band("k", "k", 1), window=sj.CountWindow(2**18))
BOUND = bind(SPEC, *(pa.schema({"k": pa.int64()}),) * 2)


def moving(case: generate.JoinCase, to: int, after: int, run: Callable[[auto.AlgorithmRequest], list[IdPair]]) -> None:
    """Run the case and let one of the algorithms that can take over do so, after so many steps."""
    able = [request for request in algorithms_for(case) if request.algorithm in ("sweep", "indexed", "pim_parallel")]
    if not able:
        return
    chosen = able[to % len(able)]
    asked: list[int] = []

    def successor(*sizes: object) -> AlgorithmChoice | None:
        asked.append(len(sizes))
        return AlgorithmChoice(chosen.algorithm, "told", chosen.index) if len(asked) > after else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto, "successor", successor)
        assert run(auto.AlgorithmRequest()) == expected(case), chosen
    # Once it has taken over, nothing is asked any more.
    assert len(asked) <= after + 1


@RELAXED
@given(case=generate.cases(), to=TARGETS, after=st.integers(0, 4), workers=st.sampled_from([1, 2]))
def test_arrival_order_is_the_same_across_a_move(case: generate.JoinCase, to: int, after: int, workers: int) -> None:
    moving(case, to, after, lambda request: run_arrival(case, request, workers))


@RELAXED
@given(case=generate.cases(self_join=True), to=TARGETS, after=st.integers(0, 4))
def test_self_joins_are_the_same_across_a_move(case: generate.JoinCase, to: int, after: int) -> None:
    moving(case, to, after, lambda request: run_arrival(case, request))


@RELAXED
@given(
    case=generate.cases(order="event_time"),
    to=TARGETS,
    after=st.integers(0, 6),
    steps=st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b"]), st.integers(1, 6)), max_size=12),
)
def test_event_time_order_is_the_same_across_a_move(
    case: generate.JoinCase, to: int, after: int, steps: list[tuple[bool, str, int]]
) -> None:
    moving(case, to, after, lambda request: run_event_time(case, request, steps=steps))


def stream(n: int) -> pa.Table:
    return pa.table({"k": np.arange(n)})


def test_the_first_small_pushes_are_scanned_whatever_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "is_compiled", lambda _: True)
    assert auto.begin(BOUND, auto.AlgorithmRequest(), 6).provisional
    assert auto.begin(BOUND, auto.AlgorithmRequest()).provisional
    assert auto.successor(BOUND, 6, 200, 0, 3) is None
    # A join that goes on gets the index, whose small pushes are compiled.
    assert auto.successor(BOUND, 6, 200, 0, 1_000) is not None


def test_the_index_depends_on_window_and_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "is_compiled", lambda _: True)
    band = sj.Band("k", "k", 1)
    for on, window, index in ((sj.Equi("k"), 2**18, "hashed"), (band, 1_000, "btree"), (band, 2**18, "pim_tree")):
        bound = bind(sj.JoinSpec(on=on, window=sj.CountWindow(window)), *(pa.schema({"k": pa.int64()}),) * 2)
        choice = auto.successor(bound, 6, 20_000, 0, 1_000)
        assert choice is not None
        assert choice.index == index
        large = auto.choose(bound, auto.AlgorithmRequest(), 10**6)
        assert (large.index or large.rival) == index


def test_sorting_pays_sooner_the_more_pairs_a_tuple_finds() -> None:
    bound = bind(sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(2**20)), *(pa.schema({"k": pa.int64()}),) * 2)
    chosen = [auto.choose(bound, auto.AlgorithmRequest(), 8_192, found=Found(n, n)).name for n in (0.1, 2.0, 10.0)]
    assert chosen == ["indexed", "indexed", "sweep"]


def test_a_join_moves_to_the_sweep_as_its_tuples_find_more_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pushes of one size: only the number of pairs changes. What pushes took would depend on the machine's load."""
    monkeypatch.setattr(auto, "is_compiled", lambda _: True)
    monkeypatch.setattr(MeasuredCosts, "add", lambda *_: None)
    rng = np.random.default_rng(0)
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(1 << 15))
    with sj.open(spec, max_rows=None) as join, sj.open(spec, "sweep", max_rows=None) as other:
        used = []
        for keys in (1 << 19, 1 << 12):
            for _ in range(80):
                tables = [pa.table({"k": rng.integers(0, keys, 4_096)}) for _ in range(2)]
                assert join.push(*tables).equals(other.push(*tables))
            used.append(join.explain().partition("algorithm")[2].partition(":")[0].strip())
    assert used[0].startswith("indexed")
    assert used[1] == "sweep"


def test_what_is_compiled_takes_over_as_soon_as_it_is_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "is_compiled", lambda _: True)
    small, large = auto.successor(BOUND, 6, 20_000, 0), auto.successor(BOUND, 50_000, 0, 0)
    assert small is not None
    assert (small.name, small.index) == ("indexed", "pim_tree")
    assert large is not None
    assert large.name == "sweep"
    assert auto.begin(BOUND, auto.AlgorithmRequest(), 50_000) == large


def test_what_is_not_compiled_waits_until_scanning_has_cost_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "is_compiled", lambda _: False)
    assert auto.begin(BOUND, auto.AlgorithmRequest(), 50_000).provisional
    assert auto.successor(BOUND, 6, 200_000, 10**9) is None
    assert auto.successor(BOUND, 6, 200_000, 10**11) is not None
    assert not auto.begin(BOUND, auto.AlgorithmRequest(), 10**6).provisional


def test_several_workers_make_the_parallel_join_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {"sweep": 300.0, "indexed": 200.0, "pim_parallel": 100.0}
    monkeypatch.setattr(auto, "is_compiled", lambda _: True)
    monkeypatch.setattr(auto, "algorithm_cost", lambda name, *_: costs[name])
    several = auto.choose(BOUND, auto.AlgorithmRequest(), 8_192, workers=4)
    assert (several.name, several.adaptive) == ("pim_parallel", True)
    assert "4 workers look pushes of 8,192 tuples up by" in several.reason
    alone = auto.choose(BOUND, auto.AlgorithmRequest(), 8_192)
    assert alone.name == "indexed"
    # What the index costs beyond the parallel join adds up until moving pays.
    assert auto.excess(2**18, alone, 10, workers=4) > 0 > auto.excess(2**18, several, 10, workers=4)
    assert auto.rival(BOUND, alone, 8_192, 1_000, 1.0, workers=4) is None
    assert auto.rival(BOUND, alone, 8_192, 1_000, 1e9, workers=4) == several
    hashed = bind(sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(2**18)), *(pa.schema({"k": pa.int64()}),) * 2)
    assert auto.choose(hashed, auto.AlgorithmRequest(), 8_192, workers=4).name == "indexed"


def test_an_algorithm_by_name_never_moves() -> None:
    for request in (
        auto.AlgorithmRequest("sweep"),
        auto.AlgorithmRequest("nested_loop"),
        auto.AlgorithmRequest("indexed", "btree"),
    ):
        assert not auto.begin(BOUND, request, 6).provisional


def test_explain_and_metrics_tell_of_the_move(monkeypatch: pytest.MonkeyPatch) -> None:
    with sj.open(SPEC) as join:
        join.push(stream(3), stream(3))
        assert "algorithm   nested_loop: few tuples so far" in join.explain()
        assert "later indexed: pushes of 6 tuples" in join.explain()
        compared = join.metrics()["compared"]
        monkeypatch.setattr(auto, "_COMPILING_NS", 0)
        join.push(stream(60_000), stream(60_000))
        assert "algorithm   sweep: tuples are looked up" in join.explain()
        assert join.metrics()["compared"] > compared


def test_a_move_that_fails_leaves_the_join_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> AlgorithmChoice:
        raise MemoryError

    with sj.open(SPEC) as join:
        join.push(stream(3), stream(3))
        before = join.metrics()
        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr(auto, "successor", fails)
            join.push(left=stream(2))
        after = join.metrics()
        assert (after["window_left"], after["bytes"]) == (before["window_left"], before["bytes"])
        assert join.push(left=stream(1)).num_rows == 2


def test_a_count_window_bounds_what_scanning_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "is_compiled", lambda _: False)
    short = sj.JoinSpec(on=sj.Band("k", "k", 1), window=sj.CountWindow(1_000))
    bound = bind(short, *(pa.schema({"k": pa.int64()}),) * 2)
    assert auto.begin(bound, auto.AlgorithmRequest(), 10**6).provisional
    assert not auto.begin(BOUND, auto.AlgorithmRequest(), 10**6).provisional
