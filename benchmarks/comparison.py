"""`python -m benchmarks.comparison`: writes the tables of other systems in docs/speed.md and README.

The parts between the two markers, README's a shorter one, are made here from the stored results of `rivals` and
`nexmark_rivals`; a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, human
from benchmarks.readme_part import RESULTS, SPEED_PAGE, ReadmePart
from benchmarks.rivals.nexmark_rivals import QUERIES
from benchmarks.rivals.nexmark_rivals import SETTINGS as NEXMARK_SETTINGS
from benchmarks.rivals.rivals import CANNOT, NOTES, SETTINGS, faster

PART = ReadmePart("comparison", "benchmarks.comparison")
_NAMES = {
    "streamjoin": "streamjoin",
    "streamjoin on Spark": "streamjoin on Spark",
    "polars": "Polars",
    "duckdb": "DuckDB",
    "pathway": "Pathway",
    "bytewax": "Bytewax",
    "flink": "Flink",
    "spark": "Spark",
}
_WORKS = {"band": "band", "key": "key", "asof": "as-of", "queries": "20 queries", "once": "all at once"}
_CELLS = " by cells"
_IN_README = ("streamjoin", "polars", "duckdb", "flink", "spark")


def render(results: Path = RESULTS) -> str:
    """The part of docs/speed.md: both tables."""
    parts = []
    for name, table in (("rivals", rivals_part), ("nexmark_rivals", nexmark_part)):
        path = results / f"{name}.json"
        if path.is_file():
            parts.append(table(json.loads(path.read_text())))
        else:
            parts.append(f"`make bench EXPERIMENT={name} ARGS=--keep` has not been stored yet.")
    return "\n\n".join(parts)


def rivals_part(record: Mapping[str, Any]) -> str:
    """The table of `rivals`, its settings, and where another system is ahead."""
    rows: Sequence[Row] = record["rows"]
    opening = (
        "The same two streams in every system: events per second of both sides together, "
        f"{_origin(record)}. A window holds 50,000 events per side. "
        f"{_agreement(rows, 'same_pairs', 'work', 'pairs')}"
    )
    lines = [
        opening,
        "",
        f"| system | {' | '.join(_WORKS.values())} | how, and what it can't express |",
        "|---|" + "---|" * len(_WORKS) + "---|",
    ]
    for system, note in NOTES.items():
        own = [row for row in rows if row["system"].removesuffix(_CELLS) == system]
        if own:
            cells = [_rates([row for row in own if row["work"] == work], (system, work)) for work in _WORKS]
            lines.append(f"| {_titled(system, own)} | {' | '.join(cells)} | {note} |")
    settings = "; ".join(f"{_NAMES[system]}: {setting}" for system, setting in SETTINGS.items())
    failures = [f"{row['system']}, {row['work']}: {row['failed']}." for row in rows if row["failed"]]
    method = (
        "The first figure of a band is by cells of the price: an equality of cells, then the exact test. The second, "
        "where there is one, is the system's own inequality join. The 20 queries are separate ones, as if of 20 users. "
        "All at once is no stream: both sides joined by key in one call. Start-up is not counted (but in «at least»), "
        "and the slowest get less input. "
        f"Settings: {settings}."
    )
    losses = (
        f"**Faster than the embedded engine here:** {_ahead(rows)}. **What others do and streamjoin does "
        "not:** aggregations without a window of time (Flink, Spark, Pathway, Bytewax), rows that are taken back when "
        "input changes (Flink, Pathway), and one join over many hosts without Spark (Flink)."
    )
    lines += [
        "",
        method,
        *failures,
        "",
        losses,
        "",
        "![Events per second by system: band, key, as-of and twenty queries](../benchmarks/results/rivals.png)",
    ]
    return "\n".join(lines)


def brief(results: Path = RESULTS) -> str:
    """README's part: the systems that most people know, without their inequality joins."""
    record = json.loads((results / "rivals.json").read_text())
    rows: Sequence[Row] = record["rows"]
    lines = [f"| events/s | {' | '.join(_WORKS.values())} |", "|---|" + "---|" * len(_WORKS)]
    for system in _IN_README:
        own = [row for row in rows if row["system"].removesuffix(_CELLS) == system]
        cells = [
            _rates([row for row in own if row["work"] == work], (system, work)).partition(", ")[0] for work in _WORKS
        ]
        lines.append(f"| {_titled(system, own)} | {' | '.join(cells)} |")
    agreement = _agreement(rows, "same_pairs", "work", "pairs")
    note = (
        f"Both sides together, {_runs(record)}. {agreement} «All at once» is no stream, but one call with both whole "
        f"tables. **Faster than streamjoin here:** {_ahead(rows)}."
    )
    lines += ["", note]
    return "\n".join(lines)


def _ahead(rows: Sequence[Row]) -> str:
    """Where another system is faster than the embedded engine, by how much."""
    ahead = [
        f"{_NAMES[row['system'].removesuffix(_CELLS)]} in {_WORKS[row['work']]} ({row['ratio']:.1f} times streamjoin)"
        for row in faster(rows)
    ]
    return "; ".join(ahead) or "none"


def nexmark_part(record: Mapping[str, Any]) -> str:
    """The table of `nexmark_rivals`, and which whole queries each system takes."""
    rows: Sequence[Row] = record["rows"]
    systems = list(dict.fromkeys(row["system"] for row in rows))
    titles = [_titled(system, [row for row in rows if row["system"] == system]) for system in systems]
    measured = any(row["query"].startswith("whole") for row in rows)
    opening = (
        f"NEXMark's joins without their aggregations{' («whole»: with them)' if measured else ''}, in the SQL of each "
        f"system, events per second, {_origin(record)}. "
        f"{_agreement(rows, 'same_rows', 'query', 'rows')}"
    )
    lines = [
        opening,
        "",
        f"| query | {' | '.join(titles)} | takes the whole query |",
        "|---|" + "---|" * len(systems) + "---|",
    ]
    for query in dict.fromkeys(row["query"] for row in rows):
        own = {row["system"]: row for row in rows if row["query"] == query}
        rates = [_rate(own[system]) if system in own else "" for system in systems]
        takers = [_NAMES[system] for system in systems if query in QUERIES and own[system]["whole_query"] == [None]]
        taken = (", ".join(takers) or "none") if query in QUERIES else ""
        lines.append(f"| {query} | {' | '.join(rates)} | {taken} |")
    settings = "; ".join(f"{_NAMES[system]}: {setting}" for system, setting in NEXMARK_SETTINGS.items())
    reasons = [
        f"{_NAMES[row['system']]} refuses {row['query']} («{_short(row['whole_query'][0])}»)"
        for row in rows
        if row["whole_query"] and row["whole_query"][0] is not None and row["system"] != "streamjoin"
    ]
    ahead = [
        f"{_NAMES[row['system']]} in {row['query']} ({row['ratio']:.1f} times streamjoin)"
        for row in rows
        if row.get("ratio", 0.0) > 1
    ]
    spelled = (
        f"streamjoin takes q5, q7, q8, q9 and q20 [as it spells them](guides/nexmark.md)"
        f"{'' if measured else ', which are not measured here yet'}, and refuses q4."
    )
    whole = (
        f"**Faster than streamjoin here:** {'; '.join(ahead) or 'none'}. Start-up is not counted (but in «at least»). "
        f"Settings: {settings}. The whole queries aggregate, or join without a bound in time. {spelled} "
        f"{'; '.join(reasons)}{'.' if reasons else ''}"
    )
    lines += ["", whole.strip()]
    return "\n".join(lines)


def _origin(record: Mapping[str, Any]) -> str:
    machine = record["machine"]
    where = f"{machine['cpu']}; load {machine['load']:.0f}; {record['date'][:10]}, commit {machine['commit']}"
    command = f"`make bench EXPERIMENT={record['experiment']}`"
    return f"{_runs(record)} ({where}, {command})"


def _runs(record: Mapping[str, Any]) -> str:
    runs = "one run" if record["repeats"] == 1 else f"the median of {record['repeats']} runs"
    return f"{runs} on {record['machine']['cores']} cores"


def _agreement(rows: Sequence[Row], same: str, name: str, what: str) -> str:
    others = [f"{row['system']} in {row[name]}" for row in rows if not row["failed"] and not row[same]]
    return (
        f"Other {what}: {', '.join(others)}." if others else f"All systems find the same {what}, compared one by one."
    )


def _titled(system: str, rows: Sequence[Row]) -> str:
    version = next((row["version"] for row in rows if row["version"]), "")
    return _NAMES[system] if "streamjoin" in system else f"{_NAMES[system]} {version}".strip()


def _rates(rows: Sequence[Row], place: tuple[str, str]) -> str:
    """The rate, that by cells first."""
    if not rows:
        return "no" if place in CANNOT else "-"
    return ", ".join(_rate(row) for row in sorted(rows, key=lambda row: not row["system"].endswith(_CELLS)))


def _rate(row: Row) -> str:
    rate = human(row["events_per_s"])
    return "failed" if row["failed"] else f"at least {rate}" if row["at_least"] else rate


def _short(reason: str) -> str:
    """The message without the class and state that Spark puts around it."""
    return reason.partition("] ")[2].partition(" SQLSTATE")[0] or reason


if __name__ == "__main__":
    PART.write(brief())
    print(PART.write(render(), SPEED_PAGE))
