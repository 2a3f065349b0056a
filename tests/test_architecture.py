"""The shape of the package: imports point one way, the public list is complete, files stay readable."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import pydoc
from functools import cache
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import streamjoin
import streamjoin.queries.engine.engine as adhoc_engine
from tests import house
from tests.house import parsed

PACKAGE = Path(streamjoin.__file__).parent
TESTS = Path(__file__).parent
LAYERS = (
    "model",
    "jit",
    "kernels",
    "windows",
    "indexes",
    "gate",
    "joins",
    "pim_tree",
    "scalejoin",
    "handshake",
    "data",
    "testing",
    "storage",
    "config",
    "formats",
    "spark",
    "queries",
    "adhoc",
    "service",
    "cli",
)
# A library, and the only places that may import it.
CONFINED = {
    "numba": ("jit",),
    "llvmlite": ("jit",),
    "pyspark": (
        "spark",
        "queries/engine/engine.py",
        "queries/executors/spark.py",
        "queries/executors/distributed/jobs.py",
    ),
    "py4j": ("spark",),
    "sqlglot": ("model",),
    "fastapi": ("service",),
    "starlette": ("service",),
    "uvicorn": ("service",),
    "typer": ("cli",),
    "hypothesis": ("testing",),
    "deltalake": ("formats", "queries/sources/tables.py"),
    "fastavro": ("formats",),
    "pyiceberg": ("formats", "queries/sources/tables.py"),
}
LONG = 1000
MOST_FILES = 25


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def layer_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


@cache
def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def test_imports_point_one_way() -> None:
    offenders = []
    for path in modules():
        layer = layer_of(path)
        if layer not in LAYERS:
            continue
        for name in sorted(imports(path)):
            package, _, rest = name.partition(".")
            imported = rest.partition(".")[0]
            if package == "streamjoin" and imported in LAYERS[LAYERS.index(layer) + 1 :]:
                offenders.append(f"{name_of(path)} must not import {name}")
    assert not offenders, "\n".join(offenders)


def test_libraries_stay_in_their_layer() -> None:
    offenders = []
    for path in modules():
        places = {layer_of(path), name_of(path)}
        for name in sorted(imports(path)):
            allowed = CONFINED.get(name.split(".")[0])
            if allowed is not None and not places & {*allowed}:
                offenders.append(f"{name_of(path)} imports {name}, which belongs in {allowed}")
    assert not offenders, "\n".join(offenders)


def test_every_module_says_what_it_is() -> None:
    offenders = [name_of(path) for path in modules() if not ast.get_docstring(parsed(path))]
    assert not offenders, f"no docstring: {offenders}"


def test_no_module_is_too_long_to_read() -> None:
    """A hint, not a style rule: one module may be long if it has one reason to exist.

    Beyond LONG lines a reader no longer keeps it in mind; the offender is split where two names explain more than one.
    """
    offenders = [name_of(path) for path in modules() if len(path.read_text().splitlines()) > LONG]
    assert not offenders, f"over {LONG} lines: {offenders}"


def test_no_folder_has_too_many_files() -> None:
    sizes = {
        folder: len({*folder.glob("*.py")} - {folder / "__init__.py"}) for folder in {path.parent for path in modules()}
    }
    assert not [f"{folder}: {size}" for folder, size in sizes.items() if size > MOST_FILES]


def test_private_methods_are_not_overridden_in_other_modules() -> None:
    """What a class keeps to itself is not the place where others change it; abstract methods are."""
    assert not house.overridden(house.modules())


def test_an_overridden_private_method_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "streamjoin"
    package.mkdir()
    (package / "base.py").write_text("class Base:\n    def _step(self): return 1\n    def _hook(self): ...\n")
    (package / "other.py").write_text(
        "from streamjoin.base import Base\nclass Other(Base):\n    def _step(self): ...\n    def _hook(self): ...\n"
    )
    monkeypatch.setattr(house, "PACKAGE", package)
    assert house.overridden(house.modules()) == ["streamjoin.other.Other._step replaces that of streamjoin.base.Base"]


def test_tests_share_helpers_not_each_others_names() -> None:
    offenders = [
        f"{path.relative_to(TESTS)} imports {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for name in sorted(imports(path))
        if name.startswith("tests.") and any(part.startswith(("_", "test_")) for part in name.split("."))
    ]
    assert not offenders, "\n".join(offenders)


def test_every_layer_is_listed() -> None:
    private = {"__init__", "__main__", "_arrays", "_cache", "_html", "_lazy", "_version"}
    assert {layer_of(path) for path in modules()} - private <= set(LAYERS)


def test_the_oracle_imports_no_engine_code() -> None:
    for path in (PACKAGE / "testing/oracle.py", TESTS / "oracles/adhoc_oracle.py"):
        assert not [used for used in imports(path) if used.startswith("streamjoin")]


def test_the_package_imports_neither_tests_nor_benchmarks() -> None:
    for path in modules():
        assert not [name for name in imports(path) if name.startswith(("tests.", "benchmarks."))], path


def test_the_ad_hoc_language_imports_only_the_model() -> None:
    for path in (PACKAGE / "queries/language").glob("*.py"):
        ours = {name for name in imports(path) if name.startswith("streamjoin.")}
        assert not [name for name in ours if not name.startswith(("streamjoin.model.", "streamjoin.queries.language."))]


def test_the_public_list_is_sorted_and_complete() -> None:
    listed = streamjoin.__all__
    assert listed == sorted(listed)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    # A star import must not hide Python's own `open`, nor load what is optional.
    reached_by_name = {"adhoc", "data", "open", "service", "spark", "testing"}
    assert imported - {"lazy", "TYPE_CHECKING"} == {*listed, *reached_by_name}
    for name in (*listed, *reached_by_name):
        assert hasattr(streamjoin, name)
        assert name in dir(streamjoin)
    assert not set(dir(builtins)) & set(listed)


def test_a_package_shows_its_public_names_alone() -> None:
    from streamjoin import adhoc, data
    from streamjoin.adhoc import sources

    assert {name for name in dir(streamjoin) if not name.startswith("__")} == {
        *(name for name in streamjoin.__all__ if not name.startswith("__")),
        *("adhoc", "data", "open", "service", "spark", "testing"),
    }
    for package in (adhoc, sources, data):
        shown = {name for name in dir(package) if not name.startswith("__")}
        assert set(package.__all__) <= shown
        assert not shown & {"TYPE_CHECKING", "lazy"}


@pytest.mark.parametrize("package", ["", ".adhoc", ".adhoc.sources", ".data", ".testing"])
def test_help_of_a_package_fits_a_screen_or_two_and_names_all_that_is_public(package: str) -> None:
    module = importlib.import_module(f"streamjoin{package}")
    shown = pydoc.plain(pydoc.render_doc(module))
    assert len(shown.splitlines()) < 80
    described = shown.partition("NAME")[2].rpartition("PACKAGE CONTENTS" if "PACKAGE CONTENTS" in shown else "DATA")[0]
    errors = {name for name in module.__all__ if name.endswith("Error")}
    assert not {name for name in set(module.__all__) - errors - {"__version__"} if name not in described}
    if not package:
        assert described.partition("DESCRIPTION")[2].split()[0] == ">>>"
        assert "StreamJoinError" in described


def test_a_star_import_gives_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from streamjoin import *", names)
    assert set(names) - {"__builtins__"} == set(streamjoin.__all__)
    assert "Join" in names


def test_what_the_engine_returns_is_public() -> None:
    from streamjoin import adhoc

    hints = [
        hint
        for name, method in inspect.getmembers(adhoc.Engine, inspect.isfunction)
        if not name.startswith("_")
        for hint in get_type_hints(method, {**vars(adhoc_engine), "DataFrame": object, "TupleSource": object}).items()
    ]
    returned = {
        part.__name__
        for name, hint in hints
        if name == "return"
        for part in (hint, *get_args(hint))
        if getattr(part, "__module__", "").startswith("streamjoin.queries")
    }
    assert {"Explanation", "QueryHandle", "QueryInfo"} <= returned
    assert returned | {"BatchEvent"} <= set(adhoc.__all__)


def test_every_public_error_is_in_the_tree() -> None:
    from streamjoin.model import errors

    tree = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert tree <= set(streamjoin.__all__)
    assert errors.__doc__ is not None
    for name in tree:
        assert name in errors.__doc__, f"{name} is not drawn"
        assert issubclass(getattr(errors, name), errors.StreamJoinError)


def test_an_unknown_submodule_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        streamjoin.nonsense  # noqa: B018


def test_one_name_is_one_class() -> None:
    homes: dict[str, list[str]] = {}
    for path in modules():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    shared = {name: places for name, places in homes.items() if len(places) > 1}
    assert not shared, f"rename all but one: {shared}"
