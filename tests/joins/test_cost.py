"""The cost model: shapes the papers derive, and what `auto` and `explain` make of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.joins.cost import Constants, Workload, calibrate, index_cost, model, parallel_cost, sweep_cost


def test_the_model_has_the_shape_of_the_equations() -> None:
    c = Constants()
    small, large = model(Workload(2**12), c), model(Workload(2**23), c)
    for name, steps in large.items():
        assert steps.total == pytest.approx(steps.lookup + steps.delete + steps.insert)
        assert steps.total > small[name].total, name
    assert large["pim_tree"].total < large["im_tree"].total < large["btree"].total
    assert large["b_chain"].delete == 0
    long_chain = model(Workload(2**20, chain_length=8), c)["b_chain"]
    assert long_chain.lookup > model(Workload(2**20, chain_length=2), c)["b_chain"].lookup
    assert long_chain.insert < model(Workload(2**20, chain_length=2), c)["b_chain"].insert
    late, early = (model(Workload(2**20, merge_ratio=m), c)["im_tree"] for m in (1.0, 1 / 64))
    assert (late.delete, late.insert) < (early.delete, late.insert)
    assert late.lookup > early.lookup
    assert model(Workload(2**20, workers=8), c)["round robin"].lookup > large["btree"].lookup


def test_fan_outs_and_the_insertion_depth_count() -> None:
    c = Constants()
    narrow, wide = (model(Workload(2**20, immutable_fanout=fanout), c)["pim_tree"] for fanout in (8, 32))
    assert narrow.lookup > wide.lookup
    depths = [model(Workload(2**20, merge_ratio=1.0, insertion_depth=d), c)["pim_tree"] for d in (1, 2)]
    # Deeper: smaller sub-indexes to search, more of T_S to go through for an insert.
    assert depths[0].lookup > depths[1].lookup
    assert model(Workload(2**20, insertion_depth=9), c)["pim_tree"] == model(Workload(2**20), c)["pim_tree"]


def test_workers_divide_what_they_share() -> None:
    for cost in (sweep_cost, parallel_cost):
        one, two, many = (cost(2**20, 65_536, n) for n in (1, 2, 16))
        assert one > two > many > one / 16
    assert parallel_cost(2**20, 64, 16) > parallel_cost(2**20, 65_536, 16)


def test_the_cheapest_is_chosen() -> None:
    assert index_cost("pim_tree", 2**20) < index_cost("btree", 2**20)
    assert index_cost("hashed", 2**10) < index_cost("btree", 2**10)
    assert sweep_cost(2**20, 65_536) < sweep_cost(2**20, 64)


def test_constants_are_measured_once() -> None:
    constants = calibrate(5_000)
    assert all(value > 0 for value in vars(constants).values())
    assert calibrate(5_001) is constants


def stream(n: int) -> pa.Table:
    return pa.table({"k": np.arange(n)})


@pytest.mark.parametrize(
    ("on", "rows", "chosen"),
    [
        (sj.Band("k", "k", 1), 20, "indexed: pushes of 40 tuples are too small to sort; pim_tree"),
        (sj.Equi("k"), 20, "equal keys are found in a hash table"),
        (sj.Band("k", "k", 1), 20_000, "sweep: tuples are looked up"),
    ],
)
def test_auto_goes_by_the_first_push(on: sj.Band, rows: int, chosen: str) -> None:
    with sj.open(sj.JoinSpec(on=on, window=sj.CountWindow(2**18))) as join:
        join.push(stream(rows), stream(rows))
        assert chosen in join.explain()


def test_explain_puts_the_model_beside_what_was_measured() -> None:
    spec = sj.JoinSpec(on=sj.Band("k", "k", 1), window=sj.CountWindow(4_096))
    with sj.open(spec, "indexed", index="im_tree", index_options={"merge_ratio": 0.5}) as join:
        join.push(stream(5_000), stream(5_000))
        text = join.explain()
    assert "* im_tree" in text
    for name in ("btree", "b_chain", "ib_chain", "pim_tree", "round robin"):
        assert name in text
    assert "measured so far for im_tree" in text


def test_index_settings_are_checked() -> None:
    spec = sj.JoinSpec(on=sj.Band("k", "k", 1), window=sj.CountWindow(64))
    with pytest.raises(sj.SpecError, match="index='tree' is not known"):
        sj.open(spec, "indexed", index="tree")
    with pytest.raises(sj.SpecError, match="goes with algorithm='indexed'"):
        sj.open(spec, "sweep", index="btree")
    with pytest.raises(sj.NotSupportedError, match="finds equal keys only"):
        sj.open(spec, "indexed", index="hashed", left_schema=stream(0).schema, right_schema=stream(0).schema)


@pytest.mark.parametrize(
    ("algorithm", "index", "settings", "says"),
    [
        ("indexed", "pim_tree", {"merge_ration": 0.1}, "'merge_ration'; did you mean 'merge_ratio'"),
        ("indexed", "btree", {"size": 1}, "'size'; it takes fanout"),
        ("indexed", "btree", {"window": 1}, "'window'; it takes fanout"),
        ("indexed", "hashed", {"size": 1}, "'size'; it takes none"),
        ("indexed", None, {"merge_ration": 0.1}, "the indexes of 'indexed' take .*fanout"),
        ("scalejoin", None, {"fanout": 3}, "needs index="),
        ("low_latency_handshake", "pim_tree", {1: 2}, "does not know 1"),
        ("indexed", "pim_tree", {"merge_ratio": "x"}, "is not a number"),
        ("indexed", "btree", {"fanout": 4.5}, "is not a whole number"),
        ("indexed", "btree", [1], "settings by name"),
    ],
)
def test_index_options_are_checked_by_open(algorithm: str, index: str | None, settings: Any, says: str) -> None:
    spec = sj.JoinSpec(on=sj.Band("k", "k", 1), window=sj.CountWindow(64))
    with pytest.raises(sj.SpecError, match=says):
        sj.open(spec, algorithm, index=index, index_options=settings)
