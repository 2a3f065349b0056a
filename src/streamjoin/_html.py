"""How notebooks show plans and figures: plain HTML tables, with every text escaped. It needs the errors alone.

A notebook asks an object for `_repr_html_`; everywhere else these objects stay what they were, a text or a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from streamjoin.model.errors import StreamJoinError

_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"
_NUMBER = "text-align:right;vertical-align:top;padding:2px 12px 2px 0;font-variant-numeric:tabular-nums"


class PlanText(str):
    """A plan in words, one fact per line: a name, spaces, a value. Indented lines belong to the fact above."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        facts: list[tuple[str, str]] = []
        for line in self.splitlines():
            name, _, value = line.partition("  ")
            if line.startswith(" ") and facts:
                facts[-1] = (facts[-1][0], f"{facts[-1][1]}\n{line}")
            else:
                facts.append((name, value.strip()))
        return fact_table(facts)


class Figures(dict[str, Any]):
    """Figures by name. A mapping inside is a group of figures."""

    def _repr_html_(self) -> str:
        return fact_table(_flat(self, ""))


def plan_or_error(explain: Callable[[], PlanText]) -> str:
    """The plan of a join, or why there is none: an object that is shown must not raise."""
    try:
        return explain()._repr_html_()
    except StreamJoinError as error:
        return fact_table([("error", str(error))])


def fact_table(facts: Iterable[tuple[str, object]], caption: str = "") -> str:
    """Names and values, one pair per line."""
    lines = "".join(
        f'<tr><th style="{_CELL}">{escape(name)}</th>'
        f'<td style="{_CELL};white-space:pre-wrap;font-family:monospace">{escape(number(value))}</td></tr>'
        for name, value in facts
    )
    return f"<table>{_caption(caption)}{lines}</table>"


def column_table(header: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """Rows under a header; numbers are aligned to the right."""
    names = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in header)
    lines = "".join(
        "<tr>"
        + "".join(
            f'<td style="{_NUMBER if isinstance(value, int | float) else _CELL + ";white-space:pre-wrap"}">'
            f"{escape(number(value))}</td>"
            for value in row
        )
        + "</tr>"
        for row in rows
    )
    return f"<table>{_caption(caption)}<thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table>"


def number(value: object) -> str:
    """A value as people read it: separators in integers, four digits of a fraction."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _caption(text: str) -> str:
    return f'<caption style="text-align:left;font-weight:bold">{escape(text)}</caption>' if text else ""


def _flat(figures: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, object]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
