"""`streamjoin capacity` with constants that are there: its text, its JSON, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from streamjoin.config.pipeline_file import read_pipeline
from streamjoin.spark.capacity.constants import write_constants
from streamjoin.spark.capacity.estimate import JoinShape, Load, estimate
from tests.cli.commands import Done, run
from tests.spark.capacity_cases import PIPELINE, SIMPLE

Cli = Callable[..., Done]
ASKED = ("capacity", "join.toml", "--rate", "5M", "--window", "10 minutes", "--executors", "200")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    monkeypatch.chdir(tmp_path)
    Path("join.toml").write_text(PIPELINE)
    write_constants(Path("join.constants.toml"), read_pipeline(Path("join.toml")), SIMPLE)
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


def test_the_figures_are_those_of_the_arithmetic(cli: Cli) -> None:
    record = json.loads(cli(*ASKED, "--json").out)
    load = Load(5e6, 600.0, 200, 4, 800, 800)
    found = estimate(SIMPLE, load)
    assert record["load"] == dataclasses.asdict(load)
    assert (record["seconds"], record["memory"], record["scarcest"]) == (found.seconds, found.memory, found.scarcest)
    assert record["counts"]["requests"] == found.counts.requests
    text = cli(*ASKED).out
    assert "5,000,000 rows/s, window 10 min, one batch after the other; 200 executors of 4 cores, 800 ranges" in text
    assert re.search(rf"^first: +{found.scarcest} saturates first", text, re.MULTILINE)
    assert "order:   no gate" in text


def test_the_file_gives_what_is_not_asked_for(cli: Cli) -> None:
    text = PIPELINE.replace("checkpoint", 'partitions = 30\ntrigger = "20 seconds"\ncheckpoint', 1)
    Path("join.toml").write_text(text)
    record = json.loads(cli("capacity", "join.toml", "--rate", "200k", "--cores", "2", "--inputs", "7", "--json").out)
    assert record["load"] == dataclasses.asdict(Load(2e5, 5.0, 1, 2, 30, 7, 20.0))
    assert record["counts"]["rows"] == 4e6
    by_rows = json.loads(cli("capacity", "join.toml", "--rate", "2k", "--window", "5000 rows", "--json").out)
    assert by_rows["load"]["window"] == 5.0


def test_what_keeps_one_task_is_told(cli: Cli) -> None:
    slow = dataclasses.replace(SIMPLE.seconds, gate_row=5e-7)
    lone = dataclasses.replace(SIMPLE, shape=JoinShape("one task"), seconds=slow)
    write_constants(Path("lone.toml"), read_pipeline(Path("join.toml")), lone)
    text = cli(*ASKED, "--constants", "lone.toml").out
    assert "order:   a gate of one task, which sees every row; that task takes" in text
    assert "the gate's task saturates first" in text
    assert "does NOT keep up" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("capacity", "join.toml"), "give --rate, such as --rate 5M, or --calibrate, or both"),
        ((*ASKED[:3], "many"), "--rate 'many': rows per second are a number above 0, such as 5M, 200k or 1500"),
        ((*ASKED[:3], "0"), "--rate '0'"),
        ((*ASKED[:4], "--window", "long"), "'long'"),
        ((*ASKED[:4], "--window", "0 seconds"), "give --window"),
        ((*ASKED, "--constants", "other.toml"), "other.toml does not exist: measure this machine's constants with"),
        ((*ASKED, "--constants", "join.toml"), "is the pipeline file itself"),
        (("capacity", "none.toml", "--rate", "5M"), "can't read none.toml"),
        ((*ASKED, "--executors", "0"), "greater than or equal to 1"),
    ],
)
def test_a_wrong_request_says_what_to_do(cli: Cli, arguments: tuple[str, ...], told: str) -> None:
    done = cli(*arguments)
    assert done.code == 2
    assert told in " ".join(done.err.replace("│", " ").split())
    assert done.out == ""
