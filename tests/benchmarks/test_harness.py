"""The harness on a toy experiment: order of runs, medians, ratios, files, and the command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console

from benchmarks import __main__ as command_line
from benchmarks import hardware, provenance, report, reproduction
from benchmarks.harness import (
    Cell,
    Context,
    Experiment,
    Finding,
    Unavailable,
    describe,
    discover,
    human,
    judge_aim,
    judge_claim,
    measure,
    named,
    planned,
)

COMMIT = "0123456789ab"
TOY = """
from benchmarks.harness import Experiment

class Toy(Experiment):
    title = "a toy"
    claim = "fast is twice as fast (figure 0)"
    measure = "rate"
    unit = "rows/s"
    repeats = 3
    against = {"system": "slow"}
    across, lines = "window", ("system",)

    def cells(self, quick):
        return [{"system": s, "window": w} for w in ((8,) if quick else (8, 64)) for s in ("slow", "fast")]

    def run(self, cell, context):
        return {"rate": (2.0 if cell["system"] == "fast" else 1.0) * cell["window"] + context.seed}

    def verdict(self, rows):
        met = {True: "met", False: "missed"}
        return [f"aim 1.5 times slow: {met[row['ratio'] >= 1.5]}" for row in rows if "ratio" in row]

EXPERIMENT = Toy()
"""


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with one experiment, one module without, and one that does not import."""
    package = tmp_path / "toy_experiments"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "toy.py").write_text(TOY)
    (package / "other.py").write_text("EXPERIMENT = 'not one'\n")
    (package / "broken.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield package.name
    for name in [name for name in sys.modules if name.split(".")[0] == package.name]:
        del sys.modules[name]


class Scripted(Experiment):
    """Gives out prepared figures and remembers the order of the runs."""

    title, measure, unit, warmups, repeats = "scripted", "rate", "rows/s", 1, 3
    against: ClassVar = {"system": "a"}

    def __init__(self, figures: Mapping[str, Sequence[float]]) -> None:
        self.figures = {name: iter(values) for name, values in figures.items()}
        self.order: list[str] = []
        self.scratch: Path | None = None
        self.closed = 0

    def cells(self, quick: bool) -> Sequence[Cell]:
        return [{"system": name} for name in self.figures]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        self.order.append(cell["system"])
        self.scratch = context.scratch
        assert context.scratch.is_dir()
        return {"rate": next(self.figures[cell["system"]]), "note": len(self.order)}

    def verdict(self, rows: Sequence[dict[str, Any]]) -> list[str]:
        return []

    def close(self) -> None:
        self.closed += 1


def test_every_grid_has_each_cell_once_and_its_baseline() -> None:
    """Of every experiment that can be imported here."""
    compared = 0
    for name, experiment in discover("benchmarks"):
        assert isinstance(experiment, Experiment), f"{name}: {experiment}"
        for quick in (True, False):
            cells = list(experiment.cells(quick))
            bases = [experiment.baseline(cell) for cell in cells]
            assert cells and len({describe(cell) for cell in cells}) == len(cells), name
            assert all(base is None or base in cells for base in bases), name
            assert None in bases, name
            compared += any(base is not None for base in bases)
    assert compared > 100


def test_rows_hold_medians_of_the_repeats_and_the_ratio_to_the_baseline() -> None:
    toy = Scripted({"a": [999, 10, 30, 20], "b": [999, 50, 40, 9]})
    lines: list[str] = []
    rows = measure(toy, step=lines.append)
    assert [row["rate"] for row in rows] == [20, 40]
    assert rows[1]["ratio"] == 2 and "ratio" not in rows[0]
    assert [row["repeats"] for row in rows] == [3, 3]
    assert len(lines) == planned(toy) == 8
    assert lines[0] == "system=a: 999 rows/s (warm-up)" and lines[-1] == "system=b: 9 rows/s"


def test_a_figure_takes_no_settings_place() -> None:
    class Named(Scripted):
        def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
            return {**super().run(cell, context), "system": "c"}

    with pytest.raises(ValueError, match=r"system=a: a run gives system='c', and system is a setting"):
        measure(Named({"a": [1] * 4}))


def test_repeats_go_round_the_grid_and_scratch_is_removed() -> None:
    toy = Scripted({"a": [1] * 9, "b": [1] * 9})
    measure(toy, repeats=2)
    assert toy.order == ["a", "b"] * 3
    assert toy.scratch is not None and not toy.scratch.exists()
    assert toy.closed == 1


def test_a_failing_run_closes_the_experiment_and_is_raised() -> None:
    toy = Scripted({"a": [1]})
    with pytest.raises(StopIteration):
        measure(toy)
    assert toy.closed == 1


def test_a_failing_run_leaves_the_others_where_failures_are_asked_for() -> None:
    toy = Scripted({"a": [1, 2, 3, 4], "b": [9], "c": [1, 6, 6]})
    failed: list[str] = []
    rows = measure(toy, failed=failed)
    assert [(row["system"], row["rate"], row["repeats"]) for row in rows] == [("a", 3, 3), ("c", 6, 2)]
    assert rows[1]["ratio"] == 2
    assert len(failed) == 4 and failed[0].startswith("system=b: StopIteration")
    rows = measure(Scripted({"a": [], "b": [1] * 4}), failed=failed)
    assert [row["system"] for row in rows] == ["b"] and "ratio" not in rows[0]


def test_a_failing_cell_is_told_and_nothing_is_kept(
    toys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(provenance, "commit", lambda: COMMIT)
    toy = dict(discover(toys))["toy"]
    kind, run = type(toy), type(toy).run  # type: ignore[union-attr]

    def fails(self: Any, cell: Cell, context: Context) -> Mapping[str, Any]:
        if cell == {"system": "slow", "window": 8}:
            raise RuntimeError("no disk")
        return run(self, cell, context)

    monkeypatch.setattr(kind, "run", fails)
    monkeypatch.setattr(kind, "verdict", lambda _, rows: [str(rows[3]["ratio"])])
    monkeypatch.setattr(kind, "plot", lambda _, rows, figure: rows[3])
    assert command_line.main(["toy", *places(tmp_path), "--keep"], toys) == 1
    printed = capsys.readouterr().out
    assert "failed: system=slow window=8: RuntimeError: no disk" in printed and "no verdict, as runs" in printed
    record = json.loads((tmp_path / "out" / "toy.json").read_text())
    assert [row["rate"] for row in record["rows"]] == [16, 64, 128] and len(record["failed"]) == 6
    assert not (tmp_path / "results").exists()


def test_a_baseline_outside_the_grid_is_refused_before_anything_runs() -> None:
    toy = Scripted({"b": [1] * 4})
    with pytest.raises(ValueError, match=r"baseline of system=b is not in the grid: system=a"):
        measure(toy)
    assert toy.order == []


def test_discovery_names_what_does_not_import_and_skips_what_is_no_experiment(toys: str) -> None:
    found = dict(discover(toys))
    assert list(found) == ["broken", "toy"]
    assert isinstance(found["broken"], Unavailable) and "nobody_has" in found["broken"].reason


def test_our_own_experiments_are_importable_and_their_grids_sound() -> None:
    for name, experiment in discover("benchmarks"):
        assert isinstance(experiment, Experiment), f"{name}: {experiment}"
        for quick in (True, False):
            cells = experiment.cells(quick)
            for cell in cells:
                base = experiment.baseline(cell)
                assert base is None or base in cells, f"{name}: {describe(cell)}"


def test_a_run_prints_a_table_with_verdict_and_writes_json_and_picture(
    toys: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert command_line.main(["toy", "--seed", "2", "--repeats", "2", "--out", str(out)], toys) == 0
    printed = capsys.readouterr().out
    assert "[12/12]" in printed and "1.80×" in printed
    assert "The paper: fast is twice as fast (figure 0)" in printed
    assert printed.count("- aim 1.5 times slow: met") == 2
    record = json.loads((out / "toy.json").read_text())
    assert record["command"] == "python -m benchmarks toy --seed 2 --repeats 2"
    assert record["seed"] == 2 and record["quick"] is False
    assert [row["rate"] for row in record["rows"]] == [10, 18, 66, 130]
    assert record["machine"]["cores"] >= 1 and record["machine"]["versions"]["streamjoin"]
    assert (out / "toy.png").read_bytes().startswith(b"\x89PNG")


def places(tmp_path: Path) -> list[str]:
    return ["--out", str(tmp_path / "out"), "--results", str(tmp_path / "results")]


def test_results_worth_keeping_are_copied(
    toys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["toy", *places(tmp_path), "--keep"]
    refusals: list[tuple[str, list[str], str | None]] = [
        ("--quick", ["--quick"], COMMIT),
        ("at least 5", ["--repeats", "4"], COMMIT),
        ("without changes", [], f"{COMMIT}+"),
        ("without changes", [], None),
    ]
    for words, more, commit in refusals:
        monkeypatch.setattr(provenance, "commit", lambda commit=commit: commit)
        assert command_line.main([*arguments, *more], toys) == 2
        assert words in capsys.readouterr().out and not (tmp_path / "results").exists()
    monkeypatch.setattr(provenance, "commit", lambda: COMMIT)
    assert command_line.main(arguments, toys) == 0
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["toy.json", "toy.png"]
    record = json.loads((tmp_path / "results" / "toy.json").read_text())
    assert record["repeats"] == 5 and record["machine"]["commit"] == COMMIT and record["machine"]["load"] >= 0
    assert {"least", "most"} <= set(record["rows"][0])


def test_several_experiments_run_one_by_one_and_stored_ones_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["first_push", "sweep", *places(tmp_path)]
    began: list[list[str]] = []

    def begin(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        began.append(command[3:])
        return subprocess.CompletedProcess(command, 1 if "sweep" in command else 0)

    monkeypatch.setattr(subprocess, "run", begin)
    monkeypatch.setattr(provenance, "commit", lambda: COMMIT)
    assert command_line.main(arguments) == 1
    assert began == [[name, *places(tmp_path)] for name in ("first_push", "sweep")]
    modules = provenance.digests(["benchmarks/product/first_push.py"])
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "first_push.json").write_text(json.dumps({"modules": modules}))
    (tmp_path / "results" / "sweep.json").write_text(
        json.dumps({"modules": {"benchmarks/product/sweep.py": "another"}})
    )
    began.clear()
    assert command_line.main([*arguments, "--keep"]) == 1
    assert [command[0] for command in began] == ["sweep"]
    began.clear()
    assert command_line.main([*arguments, "--keep", "--minutes", "-1"]) == 1
    assert not began and "sweep: not begun" in capfd.readouterr().out


def test_results_of_many_cores_are_kept_from_many_cores_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    began: list[list[str]] = []

    def run(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        began.append(list(command[3:]))
        return subprocess.CompletedProcess(command, 0)

    stored = tmp_path / "16-cores"
    stored.mkdir()
    for name in ("scalejoin_fig5", "pim_fig8a"):
        (stored / f"{name}.json").write_text(json.dumps({"modules": {"benchmarks/harness.py": "another"}}))
    monkeypatch.setattr(command_line, "RESULTS", tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    for cores, status in ((2, 2), (16, 0)):
        monkeypatch.setattr(report, "machine", partial(dict, cores=cores))
        assert not began and command_line.main(["--many-cores", "--keep", "--minutes", "5"]) == status
    rest = ["--keep", "--minutes", "5", "--results", str(stored)]
    assert began == [["pim_fig8a", *rest], ["scalejoin_fig5", *rest]]
    assert "this machine has 2" in capsys.readouterr().out


def test_a_digest_is_the_same_in_every_version_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    (tmp_path / "module.py").write_text('def f(x: int, *, y=None) -> str:\n    return f"{x:>{y}}" if x else ""\n')
    assert provenance.digests(["module.py"]) == {"module.py": "9a8e6c9e24c3bb71"}


def test_a_digest_covers_code_and_not_what_is_said_about_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    source = tmp_path / "module.py"
    source.write_text('"""A module."""\n\ndef f(x):\n    """Double."""\n    return x * 2\n')
    record = {"modules": provenance.digests(["module.py"])}
    source.write_text("def f(x):\n    # twice\n    return (x * 2)\n")
    assert provenance.changed_modules(record) == []
    source.write_text("def f(x):\n    return x * 3\n")
    assert provenance.changed_modules(record) == ["module.py"]
    source.unlink()
    assert provenance.changed_modules(record) == ["module.py"]
    assert provenance.changed_modules({}) is None


EXPERIMENT_SOURCE = """
from benchmarks.harness import Experiment, judge_claim
from benchmarks.workload import make

_PAPER = 2.0
_SIZE = 10


class Figure(Experiment):
    title = "a figure"
    claim = "twice"

    def run(self, cell, context):
        return {"rate": _measured(make(_SIZE))}

    def findings(self, rows):
        return [judge_claim("twice", _words(rows), "at least 2", rows[0]["rate"] >= _PAPER)]


def _measured(made):
    return len(made)


def _words(rows):
    return f"{rows[0]['rate']}"


def shared(rows):
    return _words(rows)
"""


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ('"twice"', '"about twice"', False),
        ("_PAPER = 2.0", "_PAPER = 3.0", False),
        ("import Experiment, judge_claim", "import Experiment, judge_aim", False),
        ("rows[0]['rate']", "rows[-1]['rate']", True),
        ("_SIZE = 10", "_SIZE = 11", True),
        ("return len(made)", "return len(made) + 1", True),
        ("import make", "import make_sorted as make", True),
    ],
)
def test_the_digest_of_an_experiment_leaves_out_judging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, changes: bool
) -> None:
    """A private helper of a finding counts where a public function needs it as well: others may call that one."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    source = tmp_path / "benchmarks" / "figure.py"
    source.write_text(EXPERIMENT_SOURCE)
    record = {"modules": provenance.digests(["benchmarks/figure.py"])}
    assert before in EXPERIMENT_SOURCE
    source.write_text(EXPERIMENT_SOURCE.replace(before, after))
    assert bool(provenance.changed_modules(record)) is changes


def test_a_stored_result_is_judged_by_what_its_own_machine_allowed() -> None:
    with hardware.stored_result(64, {"16": 12.5}):
        assert hardware.cores() == 64
        assert hardware.allowed(16) == "16 threads that share nothing gain 12.50 times here"
        assert hardware.allowed(8) == "what threads that share nothing gain there was not recorded"
    assert hardware.cores() == os.cpu_count()
    gain = hardware.apart(1)
    assert hardware.gained()["1"] == round(gain, 2)


def test_findings_are_judged_and_become_the_verdict() -> None:
    class Judged(Scripted):
        verdict = Experiment.verdict

        def findings(self, rows: Sequence[dict[str, Any]]) -> list[Finding]:
            rate = rows[0]["rate"]
            return [
                judge_claim("twice as fast", f"{rate:g} times", "at least 1.8", rate >= 1.8, "one core"),
                judge_aim("3 M", "2 M", "at least", False, "page faults"),
            ]

    assert Judged({}).verdict([{"rate": 2.0}]) == [
        "twice as fast: 2 times (at least 1.8): agrees",
        "3 M: 2 M (at least): missed; page faults",
    ]
    assert Judged({}).findings([{"rate": 1.0}])[0].reason == "one core"


def test_the_page_of_reproductions_is_what_the_stored_results_give() -> None:
    assert reproduction.main(["--check"]) == 0, "docs/reproduction.md is out of date: run `make bench-report`"
    figures = [name for paper in reproduction.PAPERS for _, name in paper.figures if name is not None]
    claimed = {name for name, experiment in discover("benchmarks") if getattr(experiment, "claim", None)}
    for name in figures:
        kind = type(named(name))
        assert kind.verdict is Experiment.verdict, f"{name} judges in text: its parts belong into findings()"
    assert set(figures) <= claimed and len(figures) == len(set(figures)) == len(reproduction.experiments())


def test_objections_are_to_figures_that_there_are() -> None:
    objections = tomllib.loads(reproduction._OBJECTIONS.read_text())
    assert set(objections) <= {*reproduction.experiments(), *(paper.name for paper in reproduction.PAPERS)}
    entries = [entry for found in objections.values() for entry in found]
    assert {entry["by"] for entry in entries} == {"design", "machine", "protocol"}
    page = reproduction.PAGE.read_text()
    assert all(f"- By {entry['by']}: {entry['what']}." in page for entry in entries)


def test_findings_that_say_the_same_share_a_line_of_the_page() -> None:
    findings = [
        asdict(judge_claim(f"tree, w = {window}: it grows", ours, "more", judged, reason))
        for window, ours, judged, reason in (
            (1, "70% of it", True, ""),
            (2, "5% of it", False, "a miss costs 30 ns"),
            (3, "60% of it", True, ""),
            (4, "4% of it", False, "a miss costs 40 ns"),
            (5, "4% of it", False, "one core"),
        )
    ]
    assert [reproduction._line(group) for group in reproduction._groups(findings)] == [
        "**Differs**: it grows (more). Ours, tree: w = 2: 5%; w = 4: 4% of it. A miss costs 30 ns.",
        "**Differs**: it grows (more). Ours, tree, w = 5: 4% of it. One core.",
        "Agrees: it grows (more). Ours, tree: w = 1: 70%; w = 3: 60% of it.",
    ]
    assert reproduction._line([findings[4]], told="one core").endswith(" Likewise.")


def test_quick_runs_the_small_grid_once(toys: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["toy", "--quick", "--out", str(tmp_path)], toys) == 0
    rows = json.loads((tmp_path / "toy.json").read_text())["rows"]
    assert {row["window"] for row in rows} == {8} and {row["repeats"] for row in rows} == {1}


@pytest.mark.parametrize(("arguments", "status"), [(["--list"], 0), ([], 0), (["tyo"], 2)])
def test_list_and_unknown_names_show_the_experiments(
    toys: str, arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(arguments, toys) == status
    printed = capsys.readouterr().out
    assert "toy " in printed and "a toy" in printed and "can't run here: No module named" in printed
    assert ("There is no experiment 'tyo'" in printed) == (status == 2)


def test_an_experiment_that_does_not_import_says_why(toys: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["broken"], toys) == 2
    assert "a_package_that_nobody_has" in capsys.readouterr().out


def test_no_repeat_is_refused(toys: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.main(["toy", "--repeats", "0"], toys)
    assert "at least 1" in capsys.readouterr().err


def test_progress_is_a_bar_on_a_terminal() -> None:
    out = Console(file=StringIO(), force_terminal=True, width=100)
    with report.progress(out, 2) as step:
        step("one [a-z] of two")
        step("two")
    assert isinstance(out.file, StringIO) and "2/2" in out.file.getvalue()


def test_commit_is_known_in_a_checkout_only(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("git") and report.machine()["commit"] is not None:
        assert len(report.machine()["commit"].rstrip("+")) == 12
    monkeypatch.setenv("PATH", "")
    assert report.machine()["commit"] is None
    monkeypatch.setenv("STREAMJOIN_COMMIT", COMMIT)
    assert report.machine()["commit"] == COMMIT


@pytest.mark.parametrize(
    ("value", "text"),
    [(9_876_543, "9.88 M"), (12.345, "12.3"), (46_100, "46.1 k"), (2e9, "2.00 G"), (0, "0")],
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert human(value) == text


def test_results_that_are_kept_are_no_changes_of_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or only the first one of several could be."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    paths = [tmp_path / name for name in ("README.md", "benchmarks/results/one.json", "src/module.py")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    for path in paths:
        path.write_text("after")
        assert str(provenance.commit()).endswith("+") == (path.suffix == ".py")
