"""What an experiment is, how experiments are found, and how one is measured.

An experiment is a grid of cells; a cell names one system at one point. Repeats go round the whole grid, so
what disturbs the machine for a while disturbs every cell, and a speed is reported as a ratio to the baseline
that ran beside it in the same process: absolute figures of another day or machine are never compared.
"""

from __future__ import annotations

import importlib
import pkgutil
import statistics
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from benchmarks.report_lines import draw_lines

if TYPE_CHECKING:
    from matplotlib import figure

Figure: TypeAlias = "figure.Figure"
"""What rows are drawn into; its library is loaded only where something is drawn."""
Cell = Mapping[str, Any]
"""The point's parameters: names and plain values, as they go into the table and the JSON."""
Row = dict[str, Any]
"""A cell with what was measured."""


@dataclass(frozen=True)
class Context:
    """What a run may use besides its cell."""

    seed: int
    quick: bool
    scratch: Path
    """An empty directory, shared by the runs of the experiment and removed at its end."""


class Judgement(StrEnum):
    """What became of a claim or an aim."""

    AGREES = "agrees"
    DIFFERS = "differs"
    NOT_TESTED = "not tested"
    MET = "met"
    MISSED = "missed"


@dataclass(frozen=True)
class Finding:
    """One part of a paper's claim, or one aim of ours, and what was measured."""

    claim: str
    """What is said, in one sentence, with its value."""
    ours: str
    """What was measured, with its unit."""
    rule: str
    """When the two agree, so that a reader can judge by another rule."""
    judgement: Judgement
    reason: str = ""
    """Why it differs or was not tested, with the evidence."""

    def line(self) -> str:
        """The finding as one line of text."""
        return f"{self.claim}: {self.ours} ({self.rule}): {self.judgement}" + (
            f"; {self.reason}" if self.reason else ""
        )


def judge_claim(claim: str, ours: str, rule: str, agrees: bool, reason: str = "") -> Finding:
    """A part of a paper's claim; the reason is given where ours differs."""
    return Finding(claim, ours, rule, Judgement.AGREES if agrees else Judgement.DIFFERS, "" if agrees else reason)


def judge_aim(aim: str, ours: str, rule: str, met: bool, reason: str = "") -> Finding:
    """An aim of ours; the reason is given where it is missed."""
    return Finding(aim, ours, rule, Judgement.MET if met else Judgement.MISSED, "" if met else reason)


def not_tested(claim: str, reason: str) -> Finding:
    """A part of a paper's claim that nothing here measures."""
    return Finding(claim, "nothing", "not measured", Judgement.NOT_TESTED, reason)


class Experiment(ABC):
    """One experiment: subclass it in a module of its own and leave an instance there as `EXPERIMENT`."""

    title: ClassVar[str]
    claim: ClassVar[str | None] = None
    """What the paper says, with its figure or section, where the experiment redoes one."""
    measure: ClassVar[str]
    """The key of `run`'s answer that is the result; greater is better."""
    unit: ClassVar[str]
    repeats: ClassVar[int] = 3
    warmups: ClassVar[int] = 1
    kept_repeats: ClassVar[int] = 5
    """A stored result has at least this many repeats: a median of fewer says little about a shared machine."""
    against: ClassVar[Mapping[str, Any]] = {}
    """What tells the cell that others are compared with from them; empty where nothing is compared."""
    across: ClassVar[str | None] = None
    """The column along the axis of the picture, if it shows lines."""
    lines: ClassVar[Sequence[str]] = ()
    """The columns that tell the lines apart."""
    log: ClassVar[bool] = False
    """Whether the axis of the result is logarithmic."""
    drawn: ClassVar[str | None] = None
    """The column that the lines show, where it is not the result."""

    @abstractmethod
    def cells(self, quick: bool) -> Sequence[Cell]:
        """The grid; a small one that takes seconds when `quick`."""

    @abstractmethod
    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Measure one cell once: at least `measure`, and whatever explains it."""

    def baseline(self, cell: Cell) -> Cell | None:
        """The cell of the same grid that `cell` is compared with; None when it is a baseline itself."""
        base = {**cell, **self.against}
        return None if base == cell else base

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Draw the rows; a figure left without axes is not written."""
        if self.across is not None:
            shown = self.drawn or self.measure
            draw_lines(figure.subplots(), rows, x=self.across, y=shown, by=self.lines, log=self.log)

    def findings(self, rows: Sequence[Row]) -> list[Finding]:  # noqa: ARG002
        """Each part of the claim and each aim, judged; an experiment has these or a `verdict` of its own."""
        return []

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The findings as lines of text."""
        return [finding.line() for finding in self.findings(rows)]

    def close(self) -> None:  # noqa: B027 - most experiments hold nothing
        """Release what the runs shared (a Spark session, a pool); called once, also after a failure."""


@dataclass(frozen=True)
class Unavailable:
    """An experiment that could not be imported."""

    reason: str


def discover(package: str) -> Iterator[tuple[str, Experiment | Unavailable]]:
    """Every experiment of `package` and its folders by module name; one that can't be imported does not hide others."""
    for name, home in sorted(_modules(package).items()):
        experiment = _experiment(home)
        if experiment is not None:
            yield name, experiment


def load(package: str, name: str) -> Experiment | Unavailable | None:
    """The experiment of one module; None when there is no such module or it holds none.

    Only the modules that the experiment needs are imported: those are what its result depends on.
    """
    home = _modules(package).get(name)
    return None if home is None else _experiment(home)


def named(name: str) -> Experiment:
    """The experiment of this package called `name`, which is known to be there."""
    found = load("benchmarks", name)
    if not isinstance(found, Experiment):
        raise LookupError(f"{name}: {found}")
    return found


def _modules(package: str) -> dict[str, str]:
    """The modules of a package and of its folders: their full names by name."""
    found = {}
    folders = [package]
    for folder in folders:
        for module in pkgutil.iter_modules(importlib.import_module(folder).__path__, f"{folder}."):
            if not module.ispkg:
                found[module.name.rpartition(".")[2]] = module.name
            elif folder == package:
                folders.append(module.name)
    found.pop("__main__", None)
    return found


def _experiment(home: str) -> Experiment | Unavailable | None:
    try:
        experiment = getattr(importlib.import_module(home), "EXPERIMENT", None)
    except ImportError as error:
        return Unavailable(str(error))
    except Exception as error:  # a broken experiment must not hide the others
        return Unavailable(f"{type(error).__name__}: {error}")
    return experiment if isinstance(experiment, Experiment) else None


def measure(
    experiment: Experiment,
    *,
    seed: int = 0,
    quick: bool = False,
    repeats: int | None = None,
    step: Callable[[str], None] = lambda _: None,
    failed: list[str] | None = None,
) -> list[Row]:
    """Run the grid and return a row a cell: medians of the repeats, and the ratio to the baseline's.

    `step` hears a line after every run; there are `planned(...)` of them. A run that fails is told in `failed`, and a
    cell without any that did not has no row; without `failed`, the error ends the run.
    """
    cells = list(experiment.cells(quick))
    _check_grid(experiment, cells)
    rounds = _rounds(experiment, quick, repeats)
    answers: list[list[Mapping[str, Any]]] = [[] for _ in cells]
    try:
        with tempfile.TemporaryDirectory(prefix="streamjoin-bench-") as scratch:
            context = Context(seed, quick, Path(scratch))
            for round_ in range(-experiment.warmups, rounds):
                for cell, kept in zip(cells, answers, strict=True):
                    try:
                        answer = experiment.run(cell, context)
                    except Exception as error:
                        if failed is None:
                            raise
                        failed.append(f"{describe(cell)}: {type(error).__name__}: {error}")
                        step(f"{failed[-1]} (failed)")
                        continue
                    _check_answer(cell, answer)
                    if round_ >= 0:
                        kept.append(answer)
                    step(_line(experiment, cell, answer, warmup=round_ < 0))
    finally:
        experiment.close()
    rows = {n: _row(cell, answers[n], experiment.measure) for n, cell in enumerate(cells) if answers[n]}
    for number, row in rows.items():
        base = experiment.baseline(cells[number])
        beside = None if base is None else rows.get(cells.index(base))
        if beside is not None:
            row["ratio"] = row[experiment.measure] / beside[experiment.measure]
    return list(rows.values())


def planned(experiment: Experiment, *, quick: bool = False, repeats: int | None = None) -> int:
    """How many runs `measure` makes."""
    return len(experiment.cells(quick)) * (experiment.warmups + _rounds(experiment, quick, repeats))


def describe(cell: Cell) -> str:
    """The cell on one line.

    >>> describe({"system": "sweep", "window": 1024})
    'system=sweep window=1,024'
    """
    return " ".join(f"{key}={value:,}" if isinstance(value, int) else f"{key}={value}" for key, value in cell.items())


def met(holds: bool) -> str:
    """The word for an aim."""
    return "met" if holds else "missed"


def human(value: float) -> str:
    """A figure with three digits and a magnitude.

    >>> human(9_876_543), human(12.345), human(46_100), human(0.00321)
    ('9.88 M', '12.3', '46.1 k', '0.00321')
    """
    for factor, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= factor:
            return f"{value / factor:#.3g}".rstrip(".") + letter
    return f"{value:.3g}"


def _rounds(experiment: Experiment, quick: bool, repeats: int | None) -> int:
    if repeats is not None and repeats < 1:
        raise ValueError(f"at least one repeat is needed, not {repeats}")
    return repeats or (1 if quick else experiment.repeats)


def _check_grid(experiment: Experiment, cells: Sequence[Cell]) -> None:
    for cell in cells:
        if cells.count(cell) > 1:
            raise ValueError(f"the grid holds this cell twice: {describe(cell)}")
        base = experiment.baseline(cell)
        if base is not None and base not in cells:
            raise ValueError(f"the baseline of {describe(cell)} is not in the grid: {describe(base)}")


def _check_answer(cell: Cell, answer: Mapping[str, Any]) -> None:
    for key, value in answer.items():
        if cell.get(key, value) != value:
            raise ValueError(
                f"{describe(cell)}: a run gives {key}={value!r}, and {key} is a setting; name it otherwise"
            )


def _line(experiment: Experiment, cell: Cell, answer: Mapping[str, Any], *, warmup: bool) -> str:
    text = f"{describe(cell)}: {human(answer[experiment.measure])} {experiment.unit}"
    return text + " (warm-up)" if warmup else text


def _row(cell: Cell, answers: Sequence[Mapping[str, Any]], measure: str) -> Row:
    """Numbers become their median; anything else is what the last repeat said. The result has its spread beside it."""
    results = [answer[measure] for answer in answers]
    row: Row = {**cell, "repeats": len(answers), "least": min(results), "most": max(results)}
    for key, last in answers[-1].items():
        number = isinstance(last, (int, float)) and not isinstance(last, bool)
        row[key] = statistics.median(answer[key] for answer in answers) if number else last
    return row
