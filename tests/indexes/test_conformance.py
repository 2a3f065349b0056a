"""Every index of the registry against a sorted list: any order of operations, structure checked after each."""

from __future__ import annotations

from typing import Any

import pytest

from streamjoin.testing.conformance import check_index
from tests.indexes.reference import CASES, case_id
from tests.seeds import examples


@pytest.mark.parametrize(("name", "shape"), CASES, ids=case_id)
def test_any_order_of_operations(name: str, shape: dict[str, Any]) -> None:
    check_index(name, examples(30), **shape)
