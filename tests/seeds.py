"""What `make fuzz` changes: the seed of tests that draw by themselves, and the number of examples."""

from __future__ import annotations

import os

FRESH = int(os.environ.get("STREAMJOIN_FUZZ_SEED", "0"))
"""Added to a test's own seeds."""


def examples(most: int) -> int:
    """How many examples Hypothesis draws for a comparison with a reference: half in the suite, all in `make fuzz`.

    The suite runs for every change and finds what breaks often; rare cases are what `make fuzz` has time for.
    """
    return most if FRESH else max(1, most // 2)
