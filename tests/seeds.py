"""How much is tested: seeds and examples of `make fuzz`, and what only `make thorough` runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

FRESH = int(os.environ.get("STREAMJOIN_FUZZ_SEED", "0"))
"""Added to a test's own seeds."""
THOROUGH = "STREAMJOIN_THOROUGH" in os.environ or FRESH != 0
"""Whether tests marked `thorough` run: `make thorough`, `make torture` and `make fuzz` ask for them."""


def examples(most: int) -> int:
    """How many examples Hypothesis draws for a comparison with a reference.

    All in `make fuzz` and `make thorough`, which have time for rare cases; a sixth in the suite.
    """
    return most if THOROUGH else max(1, most // 6)


def thorough_but(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Parameters of which the suite runs those in `kept`, and `make thorough` all."""
    return [value if value in kept else pytest.param(value, marks=pytest.mark.thorough) for value in values]


def crossed(many: Sequence[tuple[Any, ...]], few: Sequence[Any]) -> list[Any]:
    """Each of `many` with each of `few`: the suite runs each of either in one pair at least, `make thorough` all."""
    return [
        pytest.param(*one, other, marks=[] if i % len(few) == j else [pytest.mark.thorough])
        for i, one in enumerate(many)
        for j, other in enumerate(few)
    ]
