"""Where a result comes from: the commit, and a digest of each module that took part, to see later whether it changed.

A digest covers what a module does: comments, docstrings and layout do not count. In an experiment, judging and drawing
do not count either: the page of reproductions judges the stored rows anew, and a picture shows the same rows.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("streamjoin", "benchmarks")
_BYSTANDERS = frozenset(
    f"benchmarks/{name}.py"
    for name in (
        "__init__",
        "__main__",
        "comparison",
        "hardware",
        "provenance",
        "readme_part",
        "report",
        "report_lines",
        "reproduction",
        "speed_table",
    )
)
"""Modules that find, explain, print and store results; a change to them does not change a figure."""
_JUDGING = frozenset(("title", "claim", "findings", "verdict", "plot", "across", "lines", "log", "drawn"))
"""The parts of an experiment that say what its rows mean."""
_WRITTEN = tuple(
    f":(exclude){path}" for path in ("benchmarks/results", "docs/reproduction.md", "docs/speed.md", "README.md")
)
"""What keeping a result changes, as paths that git leaves out."""
_COMMIT = "STREAMJOIN_COMMIT"
"""Names the commit where the source is a copy without its repository."""


def commit() -> str | None:
    """The commit that the benchmarks run from, with a + when the tree differs from it."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *_WRITTEN)
        return _git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    return os.environ.get(_COMMIT)


def digests(paths: Iterable[str] | None = None) -> dict[str, str]:
    """A digest for each path relative to the repository; without `paths`, for the modules that this process loaded."""
    found = {}
    for path in sorted(_loaded() if paths is None else paths):
        with contextlib.suppress(OSError):
            found[path] = _digest((ROOT / path).read_text(), path.startswith("benchmarks/"))
    return found


def changed_modules(record: Mapping[str, Any]) -> list[str] | None:
    """The modules of a stored result that differ from those of this tree; None when it does not name its modules."""
    recorded = record.get("modules")
    if not recorded:
        return None
    now = digests(recorded)
    return [path for path, digest in recorded.items() if path not in _BYSTANDERS and now.get(path) != digest]


def _loaded() -> list[str]:
    paths = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] not in _PACKAGES or file is None:
            continue
        path = Path(file).resolve()
        if path.is_relative_to(ROOT) and path.suffix == ".py":
            paths.append(path.relative_to(ROOT).as_posix())
    return [path for path in paths if path not in _BYSTANDERS]


@cache
def _digest(text: str, is_experiment: bool) -> str:
    tree = ast.parse(text)
    if is_experiment:
        tree.body = _measuring(tree.body)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [item for item in body if not _is_text(item)] or [ast.Pass()]  # type: ignore[attr-defined]
    return hashlib.sha256(_described(tree).encode()).hexdigest()[:16]


def _measuring(body: list[ast.stmt]) -> list[ast.stmt]:
    """A module without what says what rows mean, and without private names and imports that only that needs."""
    for item in body:
        if isinstance(item, ast.ClassDef):
            item.body = [part for part in item.body if not _names(part) & _JUDGING] or [ast.Pass()]
    optional = [item for item in body if _names(item) and (_is_import(item) or all(map(_is_private, _names(item))))]
    kept = [item for item in body if item not in optional]
    used: set[str] = set()
    for item in kept:
        used |= _used(item)
    while found := [item for item in optional if item not in kept and _names(item) & used]:
        kept += found
        used |= {name for item in found for name in _used(item)}
    for item in kept:
        if isinstance(item, ast.Import | ast.ImportFrom):
            item.names = [alias for alias in item.names if _bound(alias) in used]
    return [item for item in body if item in kept]


def _names(item: ast.stmt) -> set[str]:
    """The names that a statement binds."""
    if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {item.name}
    if isinstance(item, ast.Import | ast.ImportFrom):
        return {_bound(alias) for alias in item.names}
    targets = item.targets if isinstance(item, ast.Assign) else [item.target] if isinstance(item, ast.AnnAssign) else []
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def _used(item: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(item) if isinstance(node, ast.Name)}


def _bound(alias: ast.alias) -> str:
    return (alias.asname or alias.name).partition(".")[0]


def _is_import(item: ast.stmt) -> bool:
    return isinstance(item, ast.Import | ast.ImportFrom)


def _is_private(name: str) -> bool:
    return name.startswith("_")


def _described(value: Any) -> str:
    """A syntax tree as text, without empty fields: versions of Python differ in those, and in `ast.dump`."""
    if isinstance(value, ast.JoinedStr):
        # Some versions put empty texts around the parts of a format.
        value = ast.JoinedStr([part for part in value.values if getattr(part, "value", None) != ""])
    if isinstance(value, ast.AST):
        fields = ((name, field) for name, field in ast.iter_fields(value) if field is not None and field != [])
        return f"{type(value).__name__}({','.join(f'{name}={_described(field)}' for name, field in fields)})"
    if isinstance(value, list):
        return f"[{','.join(map(_described, value))}]"
    return repr(value)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
