"""Checks of a join's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamjoin.joins.engine.intake import SIDES, Sources
from streamjoin.model.errors import SpecError
from streamjoin.model.spec import JoinSpec
from streamjoin.windows.crew import MOST

MAX_ROWS = 20_000_000
"""How many rows a call returns at the most, unless `max_rows=` says otherwise: some gigabytes."""


def check_workers(n: object) -> None:
    """Reject an invalid number of threads."""
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST:
        raise SpecError(f"workers={n!r}: give a number of threads from 1 to {MOST}")


def check_sources(spec: JoinSpec, sources: Mapping[str, Sequence[str]] | None) -> Sources:
    """Each side's sources by name."""
    if sources is None:
        return (), ()
    if spec.order != "event_time":
        raise SpecError("sources= is for order='event_time'")
    unknown = set(sources) - set(SIDES)
    if unknown:
        raise SpecError(f"sources= takes 'left' and 'right', not {', '.join(sorted(unknown))}")
    return tuple(sources.get("left", ())), tuple(sources.get("right", ()))


def check_rows(name: str, n: object) -> None:
    """Reject an invalid number of rows."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise SpecError(f"{name}={n!r}: give a number of rows, 1 or more")


def check_ends(max_rows: object, on_close: object) -> None:
    """Reject an invalid `max_rows`, and an `on_close` that can't be called."""
    if max_rows is not None:
        check_rows("max_rows", max_rows)
    if on_close is not None and not callable(on_close):
        raise SpecError(f"on_close={on_close!r}: give a function that takes a table")
