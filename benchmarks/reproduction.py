"""`python -m benchmarks.reproduction`: writes docs/reproduction.md from the stored results, a table for each paper."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import provenance
from benchmarks.hardware import stored_result
from benchmarks.harness import Judgement, named

RESULTS = Path(__file__).parent / "results"
_OBJECTIONS = Path(__file__).parent / "objections.toml"
PAGE = provenance.ROOT / "docs" / "reproduction.md"
_MACHINES = (("2 cores", RESULTS), ("16 cores", RESULTS / "16-cores"))
_WITHOUT = {
    "figure 11d of the arXiv version": "memory bandwidth is counted by the memory controller, and the virtual machines "
    "that the experiments run on give no access to its counters"
}
"""Why a figure has no experiment."""
_FIGURE = re.compile(r"\d[\d.,]*")
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
        parts.append("| figure | machine | repeats | what we see | code |\n|---|---|---|---|---|")
        rows: list[str] = []
        sections: list[str] = []
        for figure, name in paper.figures:
            stored = list(_stored(name))
            heading = f"{paper.name}, {figure}"
            if not stored:
                rows.append(f"| {figure} | | | not tested: {_untested(figure, name)} | |")
                continue
            sections.append(f"### {heading}\n")
            for machine, path, record in stored:
                findings = _findings(str(name), record)
                rows.append(_row(f"[{figure}](#{_anchor(heading)})", name, machine, record, findings))
                sections += _section(heading, machine, path, record, findings)
            sections += _objections(str(name))
        parts.append("\n".join(rows) + "\n")
        parts += _objections(paper.name)
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
    return "stale" if changed else "current"


def _stored(name: str | None) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    for machine, directory in _MACHINES:
        path = directory / f"{name}.json"
        if path.is_file():
            yield machine, path, json.loads(path.read_text())


def _untested(figure: str, name: str | None) -> str:
    return _WITHOUT[figure] if name is None else f"`{name}` has no stored result"


def _findings(name: str, record: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings of today's rules on the stored rows; where the rows do not fit, what was said then."""
    experiment = named(name)
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
    return f"| {figure}: `{name}` | {machine} | {repeats} | {seen} | {stale(record)}, {commit} |"


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
        yield f"![{heading}](../{picture.relative_to(provenance.ROOT).as_posix()})\n"
    yield f"On {machine}:\n"
    groups = _groups(findings)
    reasons = ["", *(group[0]["reason"] for group in groups)]
    lines = [_line(group, told) for group, told in zip(groups, reasons, strict=False)]
    yield "\n".join(f"- {line}" for line in lines or record["verdict"]) + "\n"


def _objections(name: str) -> Iterator[str]:
    """Where an author would object to how a figure is redone, or all figures of a paper."""
    found = tomllib.loads(_OBJECTIONS.read_text()).get(name, ())
    if found:
        yield "Where an author would object:\n"
        yield "\n".join(f"- By {one['by']}: {one['what']}." for one in found) + "\n"


def _groups(findings: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The findings that differ in no more than the setting and figures; those that differ from the paper first."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for finding in sorted(findings, key=lambda item: item["judgement"] not in _DIFFERENT):
        alike = (_setting(finding)[1], finding["rule"], finding["judgement"], _FIGURE.sub("", finding["reason"]))
        groups.setdefault(alike, []).append(finding)
    return list(groups.values())


def _setting(finding: dict[str, Any]) -> tuple[list[str], str]:
    """The setting that a claim begins with, part by part, and the claim without it."""
    setting, _, claim = finding["claim"].rpartition(": ")
    return setting.split(", ") if setting else [], claim


def _line(group: Sequence[dict[str, Any]], told: str = "") -> str:
    """What holds for the group, then what was measured in each setting, then why, with the figures of the first.

    A reason that the line before has `told` is not repeated.
    """
    first = group[0]
    settings = [_setting(finding)[0] for finding in group]
    common = [part for part in settings[0] if all(part in setting for setting in settings)]
    places: dict[str, list[str]] = {}
    for finding, setting in zip(group, settings, strict=True):
        places.setdefault(finding["ours"], []).append(", ".join(part for part in setting if part not in common))
    end = _common_end([text.split() for text in places])
    measured = {" ".join(text.split()[: -end or None]): " and ".join(filter(None, own)) for text, own in places.items()}
    ours = "; ".join(f"{own}: {text}" if own else text for text, own in measured.items())
    tail = " ".join(["", *first["ours"].split()[-end:]]) if end else ""
    mark = "**" if first["judgement"] in _DIFFERENT else ""
    because = first["reason"]
    reason = "" if not because else " Likewise." if because == told else f" {because[0].upper()}{because[1:]}."
    return (
        f"{mark}{first['judgement'].capitalize()}{mark}: {_setting(first)[1]} ({first['rule']}). "
        f"{', '.join(['Ours', *common])}: {ours}{tail}.{reason}"
    )


def _common_end(texts: Sequence[Sequence[str]]) -> int:
    """How many words all of several texts end with, of which each keeps its figures and their units.

    >>> _common_end([["70%", "of", "it"], ["9%", "of", "it"]]), _common_end([["1", "M"], ["2", "M"]])
    (2, 0)
    """
    end = 0
    while len(texts) > 1 and all(text[-1 - end] == texts[0][-1 - end] and text[-1 - end].islower() for text in texts):
        end += 1
    return end


_HEAD = """# Reproduction of the papers' figures

`make bench-report` writes this page from the results in `benchmarks/results`. `make bench EXPERIMENT=name ARGS=--keep`
measures one experiment and stores its result; `python -m benchmarks --figures --keep --minutes 60` does so for all that
are missing or stale, and continues where it stopped. A result names its commit and the modules that it depends on. It
is *current* if none of these modules changed since, apart from comments and from how rows are judged and drawn, and
*stale* otherwise: its figures are then those of older code; the findings are always those of today's rules, where the
rows fit them. Absolute figures depend on the machine; each finding compares systems that ran side by side. A finding
has a part of what the paper says, the rule by which we judge in parentheses, and what we measured; several settings
share a line where they say the same, and a reason then has the figures of the first. Where an author would object to
how a figure is redone, it is said what differs by design, by machine and by protocol.
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
