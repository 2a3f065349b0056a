"""What is not public in Spark is called in one module, where each call has its reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import streamjoin.spark
from streamjoin.spark.runtime import internals

PRIVATE = re.compile(r"_j(vm|df|sparkSession|sc|c|gd|write|query)|_gateway|_active_spark_context|_sc|sparkContext")
PACKAGE = Path(streamjoin.spark.__file__).parent


def _private_attributes(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr)}


def test_no_other_module_of_the_join_calls_them() -> None:
    own = Path(internals.__file__)
    assert _private_attributes(own) >= {"_jvm", "_jdf", "_jsparkSession", "_gateway"}
    offenders = {
        str(path.relative_to(PACKAGE)): sorted(attributes)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != own and (attributes := _private_attributes(path))
    }
    assert not offenders, "move these calls to spark/runtime/internals.py, with their reason"


def test_each_says_its_reason() -> None:
    tree = ast.parse(Path(internals.__file__).read_text())
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            assert ":" in (ast.get_docstring(node) or ""), f"{node.name} does not say why"
