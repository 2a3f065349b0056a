"""`python -m benchmarks.reproduction`: writes docs/reproduction.md from the stored results, a table for each paper."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import provenance
from benchmarks.hardware import stored_result
from benchmarks.harness import Experiment, Judgement

RESULTS = Path(__file__).parent / "results"
PAGE = provenance.ROOT / "docs" / "reproduction.md"
_MACHINES = (("2 cores", RESULTS), ("16 cores", RESULTS / "16-cores"))
_WITHOUT = {
    "figure 11d of the arXiv version": "memory bandwidth is counted by the memory controller, and the virtual machines "
    "that the experiments run on give no access to its counters"
}
"""Why a figure has no experiment."""
_DIFFERENT = {Judgement.DIFFERS, Judgement.MISSED, Judgement.NOT_TESTED}


@dataclass(frozen=True)
class Paper:
    """A paper and the experiments that redo its figures."""

    name: str
    title: str
    figures: tuple[tuple[str, str | None], ...]
    """A figure's number and its experiment; None where there is none."""


def _figures(prefix: str, names: str) -> tuple[tuple[str, str | None], ...]:
    return tuple((f"figure {name}", f"{prefix}{name}") for name in names.split())


PAPERS = (
    Paper(
        "PIM-Tree",
        "PIM-Tree: Shahvarani and Jacobsen, Parallel Index-based Stream Join on a Multicore CPU, SIGMOD 2020",
        (
            *_figures("pim_fig", "8a 8b 8c 9a 9b 9c 9d 10a 10b 10c 11a 11b 11c 12a 12b 12c 13a"),
            ("figures 13b and 13c", "pim_fig13"),
            ("figures 13b and 13c, one thread", "pim_fig13_drift"),
            ("figure 11b of the arXiv version", "arxiv_fig11b"),
            ("figure 11c of the arXiv version", "arxiv_fig11c"),
            ("figure 11d of the arXiv version", None),
            ("figure 14 of the arXiv version", "arxiv_fig14"),
        ),
    ),
    Paper(
        "ScaleJoin",
        "ScaleJoin: Gulisano, Nikolakopoulos, Papatriantafilou, Tsigas, IEEE Transactions on Big Data, 2016",
        (*_figures("scalejoin_fig", "5 6 7a 7b 8a 8b 8c"),),
    ),
    Paper(
        "LLHJ",
        "Low-Latency Handshake Join: Roy, Teubner, Gemulla, VLDB 2014",
        (*_figures("llhj_fig", "5 17 18 19 20 21"), ("table 2", "llhj_table2"), ("section 2.2", "parallel_baselines")),
    ),
    Paper("AJoin", "AJoin: Karimov, Rabl, Markl, VLDB 2019", _figures("ajoin_fig", "15 16 17 18 19 20 21 22")),
)


def experiments() -> list[str]:
    """The experiments that redo a figure of a paper."""
    return [name for paper in PAPERS for _, name in paper.figures if name is not None]


def page() -> str:
    """The text of docs/reproduction.md."""
    parts = [_HEAD]
    for paper in PAPERS:
        parts.append(f"## {paper.title}\n")
        parts.append("| figure | the paper | machine | repeats | what we see | code |\n|---|---|---|---|---|---|")
        rows: list[str] = []
        sections: list[str] = []
        for figure, name in paper.figures:
            stored = list(_stored(name))
            heading = f"{paper.name}, {figure}"
            if not stored:
                rows.append(f"| {figure} | {_claim(name)} | | | not tested: {_untested(figure, name)} | |")
                continue
            sections.append(f"### {heading}\n")
            for machine, path, record in stored:
                findings = _findings(str(name), record)
                rows.append(_row(f"[{figure}](#{_anchor(heading)})", name, machine, record, findings))
                sections += _section(heading, machine, path, record, findings)
        parts.append("\n".join(rows) + "\n")
        parts += sections
    return "\n".join(parts)


def _anchor(heading: str) -> str:
    """The address that pages give to a heading.

    >>> _anchor("PIM-Tree, figures 13b and 13c")
    'pim-tree-figures-13b-and-13c'
    """
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


def stale(record: dict[str, Any]) -> str:
    """Whether the code that a stored result was measured with is the code of this tree, in words."""
    changed = provenance.changed_modules(record)
    if changed is None:
        return "stale: its modules are not recorded"
    return "stale: changed since" if changed else "current"


def _stored(name: str | None) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    for machine, directory in _MACHINES:
        path = directory / f"{name}.json"
        if path.is_file():
            yield machine, path, json.loads(path.read_text())


def _claim(name: str | None) -> str:
    if name is None:
        return ""
    experiment: Experiment = importlib.import_module(f"benchmarks.{name}").EXPERIMENT
    return _cell(experiment.claim or experiment.title)


def _untested(figure: str, name: str | None) -> str:
    return _WITHOUT[figure] if name is None else f"`{name}` has no stored result"


def _findings(name: str, record: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings of today's rules on the stored rows; where the rows do not fit, what was said then."""
    experiment: Experiment = importlib.import_module(f"benchmarks.{name}").EXPERIMENT
    try:
        with stored_result(int(record["machine"]["cores"]), record.get("apart") or {}):
            return [asdict(finding) for finding in experiment.findings(record["rows"])]
    except (LookupError, TypeError, ValueError, ZeroDivisionError):
        return list(record.get("findings") or [])


def _row(
    figure: str, name: str | None, machine: str, record: dict[str, Any], findings: Sequence[dict[str, Any]]
) -> str:
    repeats = record.get("repeats") or min((row.get("repeats", 1) for row in record["rows"]), default=0)
    commit = record["machine"].get("commit") or "unknown"
    seen = _summary(findings)
    return f"| {figure}: `{name}` | {_claim(name)} | {machine} | {repeats} | {seen} | {stale(record)} ({commit}) |"


def _summary(findings: Sequence[dict[str, Any]]) -> str:
    if not findings:
        return "measured in another way than today's, see below"
    counts = {judgement: sum(item["judgement"] == judgement for item in findings) for judgement in Judgement}
    return ", ".join(f"{count} {judgement}" for judgement, count in counts.items() if count)


def _section(
    heading: str, machine: str, path: Path, record: dict[str, Any], findings: Sequence[dict[str, Any]]
) -> Iterator[str]:
    """A figure on one machine: its picture, and its findings, those that differ first."""
    picture = path.with_suffix(".png")
    if picture.is_file():
        yield f"![{heading}, {machine}](../{picture.relative_to(provenance.ROOT).as_posix()})\n"
    yield f"On {machine}:\n"
    lines = [_line(finding) for finding in sorted(findings, key=lambda item: item["judgement"] not in _DIFFERENT)]
    yield "\n".join(f"- {line}" for line in lines or record["verdict"]) + "\n"


def _line(finding: dict[str, Any]) -> str:
    because = finding["reason"]
    reason = f" {because[0].upper()}{because[1:]}." if because else ""
    mark = "**" if finding["judgement"] in _DIFFERENT else ""
    return (
        f"{finding['claim']}. Ours: {finding['ours']} (rule: {finding['rule']}): {mark}{finding['judgement']}{mark}."
        f"{reason}"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


_HEAD = """# Reproduction of the papers' figures

`make bench-report` writes this page from the results in `benchmarks/results`. `make bench EXPERIMENT=name ARGS=--keep`
measures one experiment and stores its result; `python -m benchmarks --figures --keep --minutes 60` does so for all that
are missing or stale, and continues where it stopped. A result names its commit and the modules that it depends on. It
is *current* if none of these modules changed since, apart from comments and from how rows are judged and drawn, and
*stale* otherwise: its figures are then those of older code; the findings are always those of today's rules, where the
rows fit them. Absolute figures depend on the machine; each finding compares systems that ran side by side.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or with --check say whether it is what the stored results give."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduction", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    options = parser.parse_args(argv)
    text = page()
    if options.check:
        return 0 if PAGE.is_file() and PAGE.read_text() == text else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
