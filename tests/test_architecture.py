"""The shape of the package: imports point one way, the public list is complete, files stay readable."""

from __future__ import annotations

import ast
import builtins
import inspect
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import streamjoin
import streamjoin.adhoc.engine.engine as adhoc_engine

PACKAGE = Path(streamjoin.__file__).parent
TESTS = Path(__file__).parent
LAYERS = (
    "model",
    "kernels",
    "windows",
    "indexes",
    "gate",
    "joins",
    "data",
    "testing",
    "storage",
    "config",
    "formats",
    "spark",
    "adhoc",
    "service",
    "cli",
)
# A library, and the only places that may import it.
CONFINED = {
    "numba": ("kernels",),
    "llvmlite": ("kernels",),
    "pyspark": (
        "spark",
        "adhoc/engine/engine.py",
        "adhoc/executors/spark.py",
        "adhoc/executors/spark_feed.py",
        "adhoc/executors/spark_tasks.py",
        "adhoc/executors/distributed/executor.py",
        "adhoc/executors/distributed/feed.py",
        "adhoc/executors/distributed/jobs.py",
    ),
    "py4j": ("spark",),
    "sqlglot": ("model",),
    "fastapi": ("service",),
    "starlette": ("service",),
    "uvicorn": ("service",),
    "typer": ("cli",),
    "hypothesis": ("testing",),
    "deltalake": ("formats", "adhoc/sources/tables.py"),
    "fastavro": ("formats",),
    "pyiceberg": ("formats", "adhoc/sources/tables.py"),
}
LONG = 600


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def layer_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
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
    offenders = [name_of(path) for path in modules() if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not offenders, f"no docstring: {offenders}"


def test_no_module_is_too_long_to_read() -> None:
    """A hint, not a style rule: one module may be long if it has one reason to exist.

    Beyond LONG lines a reader no longer keeps it in mind; the offender is split where two names explain more than one.
    """
    offenders = [name_of(path) for path in modules() if len(path.read_text().splitlines()) > LONG]
    assert not offenders, f"over {LONG} lines: {offenders}"


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
    for name in ("oracle.py", "adhoc_oracle.py"):
        assert not [used for used in imports(PACKAGE / "testing" / name) if used.startswith("streamjoin")]


def test_the_ad_hoc_language_imports_only_the_model() -> None:
    for path in (PACKAGE / "adhoc/language").glob("*.py"):
        ours = {name for name in imports(path) if name.startswith("streamjoin.")}
        assert not [name for name in ours if not name.startswith(("streamjoin.model.", "streamjoin.adhoc.language."))]


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
        if getattr(part, "__module__", "").startswith("streamjoin.adhoc")
    }
    assert {"Explanation", "QueryHandle", "QueryInfo"} <= returned
    assert returned | {"BatchEvent"} <= set(adhoc.__all__)


@pytest.mark.parametrize("name", ["BandTerm", "JoinKey", "Output", "Query", "Shared", "open_core", "parse"])
def test_former_names_of_the_ad_hoc_package_warn(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"adhoc.{name} is deprecated: import it from"):
        value = getattr(streamjoin.adhoc, name)
    assert value.__name__ == name
    assert name not in dir(streamjoin.adhoc)


def test_a_former_kind_of_change_still_makes_one() -> None:
    with pytest.warns(DeprecationWarning, match=r"adhoc\.Create is deprecated"):
        change = streamjoin.adhoc.Create("q", "SELECT")
    assert (change.action, change.name, change.query) == ("create", "q", "SELECT")


def test_a_former_name_that_was_renamed_says_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match=r"import it from streamjoin\.adhoc\.language\.plan, where it is Query"):
        assert streamjoin.adhoc.Source.__name__ == "QuerySource"


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
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    shared = {name: places for name, places in homes.items() if len(places) > 1}
    assert not shared, f"rename all but one: {shared}"
