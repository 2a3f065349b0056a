"""Joins with summaries beside a quadratic loop with `math.fsum`, whatever the order, the sources and the cuts are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.joins.kinds import summary_operator, summary_pairs, summary_slides
from tests.joins.summary_runs import Case, opened, ran, summary_cases
from tests.seeds import examples

CUTS = st.lists(st.integers(1, 5), max_size=3)


@settings(deadline=None, max_examples=examples(600))
@given(case=summary_cases(), cuts=CUTS)
def test_rows_are_those_of_a_quadratic_loop(case: Case, cuts: list[int]) -> None:
    with opened(case) as join:
        assert ran(case, join, cuts) == (case.expected(), [])


@settings(deadline=None, max_examples=examples(600))
@given(case=summary_cases(plain=True), cuts=CUTS)
def test_ends_of_windows_decide_the_plain_summaries(case: Case, cuts: list[int]) -> None:
    with opened(case) as join:
        assert ran(case, join, cuts)[0] == case.expected()


@settings(deadline=None, max_examples=examples(300))
@given(case=summary_cases(ends=True), cuts=CUTS)
def test_times_at_the_ends_of_int64(case: Case, cuts: list[int]) -> None:
    with opened(case) as join:
        assert ran(case, join, cuts)[0] == case.expected()


@settings(deadline=None, max_examples=examples(300))
@given(case=summary_cases(lateness=2), cuts=CUTS)
def test_late_tuples_give_no_row_and_count_in_none(case: Case, cuts: list[int]) -> None:
    with opened(case) as join:
        rows, late = ran(case, join, cuts)
        assert rows == case.expected(late)


@settings(deadline=None, max_examples=examples(360))
@given(case=summary_cases(lateness=2), cuts=CUTS, least=st.integers(0, 4), steps=st.sampled_from([1, 3, 1 << 15]))
def test_dropping_what_no_window_needs_changes_nothing(case: Case, cuts: list[int], least: int, steps: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary_operator, "_LEAST_STORED", least)
        patch.setattr(summary_slides, "_STEPS", steps)
        patch.setattr(summary_pairs, "_BLOCK", 3)
        with opened(case) as join:
            rows, late = ran(case, join, cuts)
            assert rows == case.expected(late)
