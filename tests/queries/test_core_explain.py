"""What the core says about its plan."""

from __future__ import annotations

import json
import re
from time import perf_counter

from tests.queries.optimizer_cases import CHAIN, DISJOINT, SAME, running, tables


def test_the_figures_are_those_of_the_batches() -> None:
    core = running([*SAME, CHAIN])
    found = core.explain()
    streams = {stream.name: stream for stream in found.streams}
    assert streams["a"].held == 1200 and streams["a"].rate == 600
    assert streams["a"].keys["k"] == 5 and streams["a"].selected == 1.0
    first = next(root for root in found.roots if root.driver == "a" and root.step.stream == "b")
    assert set(first.step.queries) == {"q0", "q1", "q2", "q3", "q4", "q5"}
    assert first.step.ends == ("q0", "q1", "q2", "q3", "q4")
    assert first.step.steps[0].ends == ("q5",)
    assert 0 < first.step.pairs <= first.step.candidates
    assert first.step.probes == 600
    assert found.cost_shared < found.cost_apart


def test_the_tree_names_streams_steps_and_decisions() -> None:
    core = running(DISJOINT)
    core.replan()
    core.process(2, tables(2))
    text = str(core.explain())
    assert "10 queries, sharing: cost" in text
    assert "new tuples of b, for q9\n└─ a by a.k = b.k: one query uses it, 1 end; " in text
    assert "a ⋈ b by a.k = b.k: 10 queries in 10 groups, because it is cheaper" in text
    assert "cost apart" in text


def test_no_text_of_a_plan_has_names_of_rules_roles_or_groups() -> None:
    core = running([*SAME, CHAIN])
    core.replan()
    core.process(2, tables(2))
    found = core.explain()
    assert "new tuples of a, for q0, q1, q2 and 2 more\n└─ b by a.k = b.k: 5 queries share it, 5 end; " in str(found)
    assert "q0 computes its own join steps, because no other query has them" in str(found)
    assert "q5 uses join steps of other queries, because " in str(found)
    inner = r"share_eagerly|group_by_cost|reorder_joins|\bgroup \d|\bs\d\."
    for text in (str(found), found._repr_html_(), found.dot):
        assert not re.findall(inner, text)


def test_json_and_dot_hold_every_step() -> None:
    found = running([CHAIN]).explain()
    data = json.loads(found.json)
    assert [root["driver"] for root in data["roots"]] == [root.driver for root in found.roots]
    assert [(decision["rule"], decision["queries"]) for decision in data["decisions"]] == [("share_eagerly", ["q0"])]
    steps = sum(1 for root in found.roots for _ in root.step.walk())
    assert steps == 6
    assert found.dot.count("->") == steps
    assert found.dot.startswith("digraph plan {") and found.dot.endswith("}")


def test_nothing_is_explained_before_the_first_batch() -> None:
    core = running([])
    assert "0 queries" in str(core.explain())


def test_a_watcher_sees_the_step_that_runs_and_each_step_has_its_time() -> None:
    core = running([*SAME, CHAIN])
    seen = set()
    check = core._execution.ledger.check

    def watched() -> bool:
        seen.add(core.position())
        return check()

    core._execution.ledger.check = watched  # type: ignore[method-assign]
    before = sum(step.seconds for root in core.explain().roots for step in root.step.walk())
    began = perf_counter()
    core.process(2, tables(2))
    spent = perf_counter() - began
    places = {place for place in seen if place is not None}
    assert (("a", "b"), ("q0", "q1", "q2", "q3", "q4", "q5")) in places
    assert {streams for streams, queries in places if queries == ("q5",)} >= {("a", "b", "c")}
    assert core.position() is None
    steps = [step for root in core.explain().roots for step in root.step.walk()]
    assert all(step.seconds > 0 for step in steps)
    # No time is counted twice: each step's is without that of the steps after it. Three batches so far.
    assert 0 < 3 * sum(step.seconds for step in steps) - 2 * before <= spent
