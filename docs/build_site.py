"""Builds the documentation site: `python docs/build_site.py`, or `make docs`.

The pages are copied to `build/docs`, where pages made from the code join them: the index of decisions, the options of
the command line, the REST interface, the tables of modules. Links to files of the repository work where the repository
is browsed; on the site they become plain names, and plots are copied. Zensical then renders everything and fails on a
link that leads nowhere.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "docs"
STAGE = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
PACKAGE = ROOT / "src" / "streamjoin"
RESULTS = ROOT / "benchmarks" / "results"
INSTALLED = "."
"""What `pip install` names on the site: a checkout, until the package has been published under its name."""
_INSTALL = re.compile(r"(pip install '?)\.(?=[\['`\s])")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+(?:src|tests|examples|benchmarks|CONTRIBUTING)[^)]*)\)")
_PLOT = re.compile(r"\[([^\]]+)\]\((?:\.\./)+benchmarks/results/([^)]+\.png)\)")


def main() -> int:
    """Stage the pages, render them, add `llms.txt`; the exit status."""
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(SOURCE, STAGE, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for page in STAGE.rglob("*.md"):
        up = "../" * (len(page.relative_to(STAGE).parts) - 1)
        text = _OUTSIDE.sub(r"\1", _PLOT.sub(rf"[\1]({up}results/\2)", page.read_text()))
        text = text.replace("](decisions)", "](decisions/index.md)")
        text = text.replace("](reference)", "](reference/modules.md)")
        page.write_text(_INSTALL.sub(rf"\g<1>{INSTALLED}", text))
    for plot in RESULTS.rglob("*.png"):
        target = STAGE / "results" / plot.relative_to(RESULTS)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(plot, target)
    (STAGE / "decisions" / "index.md").write_text(_decisions())
    (STAGE / "reference" / "commands.md").write_text(_commands())
    (STAGE / "reference" / "rest.md").write_text(_rest())
    (STAGE / "reference" / "modules.md").write_text(modules())
    rendered = subprocess.run([sys.executable, "-m", "zensical", "build", "--clean"], cwd=ROOT, check=False)
    if rendered.returncode == 0:
        (SITE / "llms.txt").write_text(_llms())
    return rendered.returncode


def _summary(text: str) -> tuple[str, str]:
    """The title of a page and the first sentence of its first paragraph."""
    title, _, body = text.partition("\n")
    paragraphs = (part.strip() for part in body.split("\n\n"))
    prose = next((part for part in paragraphs if part and part[0] not in "#`|<!-:"), "")
    return title.removeprefix("# ").strip(), re.split(r"(?<=[.:]) ", _plain(prose))[0]


def _plain(prose: str) -> str:
    """A paragraph on one line, without links and bold type."""
    return re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(prose.split()).replace("**", ""))


def _first_sentence(prose: str) -> str:
    return re.split(r"(?<=\.) (?=[A-Z`*])", prose)[0]


def _llms() -> str:
    title, summary = _summary((SOURCE / "index.md").read_text())
    lines = [f"# {title}", "", f"> {summary}", ""]
    for path in sorted(STAGE.rglob("*.md")):
        name, sentence = _summary(path.read_text())
        place = path.relative_to(STAGE).with_suffix("").as_posix().removesuffix("index")
        lines.append(f"- [{name}]({place.rstrip('/')}/)" + (f": {sentence}" if sentence else ""))
    return "\n".join(lines) + "\n"


def _decisions() -> str:
    rows = []
    for path in sorted((SOURCE / "decisions").glob("*.md")):
        title, _, body = path.read_text().partition("\n")
        decision = body.partition("**Decision.** ")[2].split("\n\n")[0]
        rows.append(f"| [{title.removeprefix('# ')}]({path.name}) | {_first_sentence(_plain(decision))} |")
    return "\n".join(["# Decisions", "", "Why it is built this way.", "", "| decision | |", "|---|---|", *rows, ""])


def modules() -> str:
    """A table for each folder of the package: its modules, each with the first sentence of its docstring."""
    lines = ["# Modules", "", "Every module of `src/streamjoin`, with the first sentence of its docstring.", ""]
    for folder in sorted({path.parent for path in PACKAGE.rglob("*.py")}):
        name = folder.relative_to(PACKAGE.parent).as_posix()
        lines += [f"## `{name}/`", "", _sentence(folder / "__init__.py"), ""]
        files = [path for path in sorted(folder.glob("*.py")) if not path.name.startswith("__")]
        if files:
            rows = [f"| `{path.name}` | {_sentence(path)} |" for path in files]
            lines += ["| module | what it is |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _sentence(path: Path) -> str:
    """The first sentence of a module's docstring, as a cell of a table."""
    text = (ast.get_docstring(ast.parse(path.read_text())) or "") if path.exists() else ""
    return _first_sentence(" ".join(text.split("\n\n")[0].split())).replace("|", "\\|").replace("<", "&lt;")


def _commands() -> str:
    from typer.cli import get_docs_for_click
    from typer.main import get_command

    from streamjoin.cli import commands

    command = get_command(commands)
    context = command.make_context("streamjoin", [], resilient_parsing=True)
    text = get_docs_for_click(obj=command, ctx=context, name="streamjoin")
    return text.replace("# `streamjoin`", "# Commands and options", 1)


def _rest() -> str:
    from streamjoin.service import create_app

    lines = [
        "# REST",
        "",
        "[The service](../service.md) explains how to use it; `/api/v1/openapi.json` has the complete description.",
        "",
    ]
    for path, methods in create_app(None).openapi()["paths"].items():
        for method, operation in methods.items():
            about = operation.get("description") or operation.get("summary", "")
            lines += [f"## `{method.upper()} {path}`", "", about, "", *_parameters(operation)]
            answers = operation["responses"].items()
            lines += ["| status | meaning |", "|---|---|"]
            lines += [*(f"| {status} | {answer['description']} |" for status, answer in answers), ""]
    return "\n".join(lines)


def _parameters(operation: dict[str, Any]) -> list[str]:
    items = operation.get("parameters", [])
    if not items:
        return []
    rows = [f"| `{item['name']}` | {item['in']} | {_meaning(item)} |" for item in items]
    return ["| parameter | in | meaning |", "|---|---|---|", *rows, ""]


def _meaning(item: dict[str, Any]) -> str:
    text = item.get("description") or item.get("schema", {}).get("description") or ""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
