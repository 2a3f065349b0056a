"""The shape of the package in figures: `make house` prints them, with the names behind each.

They are counted from the syntax trees of `src/streamjoin` alone. None is a limit: tests/test_architecture.py has those.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "streamjoin"
SMALL = 150
MANY_PARAMETERS = 12
MANY_FILES = 25
CONCRETE = ("joins", "indexes", "sinks", "executors", "pim_tree", "scalejoin", "handshake", "batch")
"""Folders whose public classes are algorithms, indexes, sinks or executors, unless they are abstract."""


@dataclass
class Module:
    """A module of the package: its tree, and the names that it imports from the package."""

    path: Path
    name: str
    tree: ast.Module
    lines: int
    imports: dict[str, str] = field(default_factory=dict)
    """By local name, the full name of what it stands for."""

    @property
    def room(self) -> str:
        """The folder, below the package, that it lies in; `kernels` belong to the folder above."""
        parts = [part for part in self.path.relative_to(PACKAGE).parent.parts if part != "kernels"]
        return "/".join(parts)

    def classes(self) -> Iterator[ast.ClassDef]:
        """The classes at the top of the module."""
        return (node for node in self.tree.body if isinstance(node, ast.ClassDef))


@cache
def parsed(path: Path) -> ast.Module:
    """A file's syntax tree, read once for all that look at it."""
    return ast.parse(path.read_text())


def modules() -> dict[str, Module]:
    """All modules of the package by dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text()
        module = Module(path, name, parsed(path), len(text.splitlines()))
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    module.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    module.imports[alias.asname or alias.name] = alias.name
        found[name] = module
    return found


def code_lines(module: Module) -> int:
    """Lines that are neither empty, nor comments, docstrings or imports."""
    apart: set[int] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            apart.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                apart.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(module.path.read_text().splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and n not in apart for n, line in lines)


def importers(house: dict[str, Module]) -> dict[str, set[str]]:
    """For each module the modules that import it or a name of it."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in house.values():
        for name in module.imports.values():
            target = name if name in house else name.rpartition(".")[0]
            if target in house and target != module.name:
                found[target].add(module.name)
    return found


def named_in_strings(house: dict[str, Module]) -> set[str]:
    """Modules that a registry loads by name."""
    found: set[str] = set()
    for module in house.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value.partition(":")[0]
                base = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
                found.update(name for name in (text, f"streamjoin.{text}", f"{base}.{text}") if name in house)
    return found


def small_modules(house: dict[str, Module]) -> list[str]:
    """Modules of under `SMALL` lines with one importer that no registry loads."""
    by, loaded = importers(house), named_in_strings(house)
    return [
        f"{name} ({module.lines}, for {next(iter(by[name]))})"
        for name, module in house.items()
        if module.path.name != "__init__.py" and module.lines < SMALL and len(by[name]) == 1 and name not in loaded
    ]


def _is_abstract(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if any("abstract" in ast.unparse(decorator) for decorator in method.decorator_list):
        return True
    body = [one for one in method.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    return not body or (len(body) == 1 and isinstance(body[0], ast.Raise) and "NotImplemented" in ast.unparse(body[0]))


def _private(owner: ast.ClassDef) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    return {
        node.name: node
        for node in owner.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("_")
        and not node.name.startswith("__")
    }


def overridden(house: dict[str, Module]) -> list[str]:
    """Concrete private methods that a class of another module replaces."""
    classes = {f"{module.name}.{node.name}": (module, node) for module in house.values() for node in module.classes()}

    def bases(name: str) -> Iterator[str]:
        module, node = classes[name]
        for base in node.bases:
            text = ast.unparse(base).partition("[")[0]
            full = module.imports.get(text.split(".")[0], f"{module.name}.{text}")
            if "." in text and text.split(".")[0] in module.imports:
                full = f"{full}.{text.partition('.')[2]}"
            if full in classes:
                yield full
                yield from bases(full)

    found = []
    for name, (module, node) in classes.items():
        for method in _private(node):
            for base in bases(name):
                owner = _private(classes[base][1]).get(method)
                if owner is not None and classes[base][0].name != module.name and not _is_abstract(owner):
                    found.append(f"{name}.{method} replaces that of {base}")
                    break
    return found


def asked_for_their_class(house: dict[str, Module]) -> list[str]:
    """`isinstance` with a concrete algorithm, index, sink or executor, outside the folder of that class."""
    concrete = {
        f"{module.name}.{node.name}": module.room
        for module in house.values()
        if set(module.path.relative_to(PACKAGE).parts) & set(CONCRETE)
        for node in module.classes()
        if not any(word in ast.unparse(base) for base in node.bases for word in ("Protocol", "ABC", "Error"))
        if any(isinstance(part, ast.FunctionDef) for part in node.body)
    }
    found = []
    for module in house.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                for name in ast.walk(node.args[1]):
                    full = module.imports.get(name.id, "") if isinstance(name, ast.Name) else ""
                    if full in concrete and concrete[full] != module.room:
                        found.append(f"{module.name} asks for {full}")
    return sorted(set(found))


def many_parameters(house: dict[str, Module]) -> list[str]:
    """Functions with more than `MANY_PARAMETERS` parameters."""
    return [
        f"{module.name}.{node.name} ({count})"
        for module in house.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for count in [len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)]
        if count > MANY_PARAMETERS
    ]


def crowded_folders() -> list[str]:
    """Folders with more than `MANY_FILES` modules."""
    counts = Counter(path.parent for path in PACKAGE.rglob("*.py"))
    return [f"{folder.relative_to(PACKAGE)} ({n})" for folder, n in sorted(counts.items()) if n > MANY_FILES]


def shared_class_names(house: dict[str, Module]) -> list[str]:
    """Class names that stand for more than one class."""
    places = defaultdict(list)
    for module in house.values():
        for node in module.classes():
            places[node.name].append(module.name.removeprefix("streamjoin."))
    return [f"{name}: {', '.join(where)}" for name, where in sorted(places.items()) if len(where) > 1]


def words_of_docs() -> int:
    """Words of the documentation."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return sum(len(page.read_text().split()) for page in pages)


def report(details: bool) -> Iterator[str]:
    """The figures, a line each; with `details` the names behind them."""
    house = modules()
    yield f"{sum(module.lines for module in house.values()):>7,} lines in {len(house)} files"
    yield f"{sum(map(code_lines, house.values())):>7,} of them code"
    yield f"{words_of_docs():>7,} words of documentation"
    parts: tuple[tuple[str, Iterable[str]], ...] = (
        (f"modules of under {SMALL} lines with one importer, in no registry", small_modules(house)),
        ("concrete private methods overridden across modules", overridden(house)),
        ("isinstance of a concrete algorithm, index, sink or executor elsewhere", asked_for_their_class(house)),
        (f"functions with more than {MANY_PARAMETERS} parameters", many_parameters(house)),
        (f"folders of more than {MANY_FILES} files", crowded_folders()),
        ("class names in more than one module", shared_class_names(house)),
    )
    for title, names in parts:
        yield f"{len(list(names)):>7,} {title}"
        if details:
            yield from (f"          {name}" for name in names)


if __name__ == "__main__":
    for line in report("--names" in sys.argv[1:]):
        print(line)
