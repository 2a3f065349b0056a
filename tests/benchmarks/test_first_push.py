"""The experiment runs README's own program, keeps caches apart, and says whether the aims are met."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.harness import Context
from benchmarks.product import first_push
from benchmarks.product.first_push import EMPTY, FILLED, TEN_LINES, FirstPush


def test_the_ten_lines_are_those_of_readme() -> None:
    program = first_push.programs()[TEN_LINES]
    assert program.count("\n") == 10
    assert program.splitlines()[0] == "import pyarrow as pa"


def test_a_filled_cache_is_what_the_run_before_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that writes to the cache stands in for one that compiles."""
    writes = "import os, pathlib; p = pathlib.Path(os.environ['XDG_CACHE_HOME']); p.mkdir(exist_ok=True)\n"
    writes += "[print(file) for file in p.iterdir()]; (p / 'kernel.nbc').touch()"
    monkeypatch.setattr(first_push, "programs", lambda: {TEN_LINES: writes})
    experiment, context = FirstPush(), Context(0, True, tmp_path)
    ran = [experiment.run({"program": TEN_LINES, "cache": cache}, context) for cache in (EMPTY, FILLED, EMPTY)]
    assert [row["lines"] for row in ran] == [0, 1, 0]
    assert [row["kernels"] for row in ran] == [1, 1, 1]
    assert all(row["cpu_s"] > 0 for row in ran)


def test_the_verdict_compares_with_the_aims() -> None:
    rows = [{"program": TEN_LINES, "cache": EMPTY, "cpu_s": 5.9}, {"program": TEN_LINES, "cache": FILLED, "cpu_s": 1.6}]
    told = FirstPush().verdict(rows)
    assert told[0].endswith("5.90 CPU seconds; aim 6.0: met")
    assert told[1].endswith("1.60 CPU seconds; aim 1.5: missed")


def test_the_ten_lines_take_neither_a_parser_nor_an_index(tmp_path: Path) -> None:
    check = (
        "import sys\n"
        "from streamjoin.indexes.registry import INDEXES\n"
        "assert 'sqlglot' not in sys.modules\n"
        "assert not any(index.task.overloads for index in INDEXES.values())\n"
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    _, output = first_push.cpu_seconds(first_push.programs()[TEN_LINES] + check, cache, tmp_path)
    assert output == "10.0 ~ 10.1 at A\n99.0 ~ 98.9 at C\n"
