"""What `make fuzz` changes: the seed of tests that draw by themselves, and the number of examples."""

from __future__ import annotations

import os

FRESH = int(os.environ.get("STREAMJOIN_FUZZ_SEED", "0"))
"""Added to a test's own seeds."""
QUICK = "STREAMJOIN_QUICK" in os.environ


def examples(most: int) -> int:
    """How many examples Hypothesis draws for a comparison with a reference.

    All in `make fuzz`, which has time for rare cases; a third in the suite; a sixth in `make quick`.
    """
    return most if FRESH else max(1, most // (6 if QUICK else 3))
