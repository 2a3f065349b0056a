"""What the documents say is run: the README's example, its commands, and every doctest."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import pkgutil
import re
from pathlib import Path

import pytest

import streamjoin
from tests.documents import run_page

ROOT = Path(__file__).parents[1]
PACKAGE = Path(streamjoin.__file__).parent
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"(<!-- no-run[^>]*-->\n)?```(\w+)\n(.*?)```", re.DOTALL)


def test_the_readme_example_prints_what_it_says() -> None:
    blocks = BLOCK.findall(README)
    programs = [code for skipped, language, code in blocks if language == "python" and not skipped]
    outputs = [code for _, language, code in blocks if language == "text"]
    assert len(programs) == 1
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(programs[0], "README.md", "exec"), {"__name__": "readme"})
    assert printed.getvalue() == outputs[0]
    assert sum(1 for line in programs[0].splitlines() if line.strip()) <= 10


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len(README.split()) <= 1200, "say it in docs/, and link to it"


@pytest.mark.parametrize(
    "page",
    [
        "index",
        "inputs",
        "live",
        "joins",
        "guides/windows",
        "guides/from-spark",
        "guides/from-flink",
        "guides/from-asof",
        "guides/tables",
    ],
)
def test_the_programs_of_a_page_print_what_it_says(page: str) -> None:
    run_page(ROOT / "docs" / f"{page}.md")


def test_the_readme_commands_are_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = set(re.findall(r"make ([a-z]+)", README))
    assert {"demo", "test", "bench", "help"} <= commands
    for target in commands:
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), f"make {target} is not listed by make help"


def test_ci_runs_the_readme_test_command() -> None:
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "make test"


def test_links_lead_somewhere() -> None:
    offenders = [
        f"{path.relative_to(ROOT)} links to {target}"
        for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text())
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert not offenders, "\n".join(offenders)


def test_the_package_is_installed_from_a_checkout() -> None:
    """It is not published. A message of the package may name it: pip finds the extras of what is installed."""
    places = ["*.md", "*.yml", "Makefile", "docs/**/*", "notebooks/*", "examples/*", "deploy/**/*"]
    pages = [path for place in places for path in ROOT.glob(place) if path.suffix not in (".png", ".svg", ".pyc")]
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in pages
        if path.is_file() and path.name != "CHANGELOG.md"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"pip install\b.*\bstreamjoin\b|\bstreamjoin\[", line.replace("/opt/streamjoin", ""))
    ]
    assert not lines, "\n".join(lines)


def test_modules_named_in_the_docs_exist() -> None:
    """A name with a folder is a path from the package or the repository; a bare one lies beside the path before it."""
    missing: list[str] = []
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
        for number, line in enumerate(page.read_text().splitlines(), 1):
            folder = Path()
            for name in re.findall(r"`([\w./-]+\.py)`", line):
                path = Path(name) if "/" in name else folder / name
                if not any((base / path).is_file() for base in (ROOT, PACKAGE)):
                    missing.append(f"{page.name}:{number}: {path}")
                folder = path.parent
    assert not missing, missing


def test_the_walkthrough_links_modules_by_their_names() -> None:
    links = re.findall(r"\[([\w/]+\.py)\]\(([^)]+)\)", (ROOT / "docs" / "walkthrough.md").read_text())
    assert len(links) > 30
    assert [name for name, target in links if target != f"../src/streamjoin/{name}"] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=lambda page: page.stem)
def test_a_decision_is_short_and_says_what_was_decided(page: Path) -> None:
    text = page.read_text()
    assert "**Decision.** " in text
    assert len(text.split()) <= 300


def modules() -> list[str]:
    found = pkgutil.walk_packages(streamjoin.__path__, "streamjoin.")
    return ["streamjoin", *sorted(m.name for m in found if not m.name.endswith("__main__"))]


@pytest.mark.slow
def test_doctests() -> None:
    offenders = [name for name in modules() if doctest.testmod(importlib.import_module(name)).failed]
    assert not offenders, f"failing doctests: {offenders}"


def test_every_dependency_has_its_sentence() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    named = set(re.findall(r'"([a-z0-9-]+)[><=]', project.split("[project.scripts]")[0]))
    told = (ROOT / "docs" / "dependencies.md").read_text()
    assert not [name for name in named - {"hatchling"} if name not in told]
