"""The seed of tests that draw by themselves: always the same one, or a fresh one while `make fuzz` runs."""

from __future__ import annotations

import os

FRESH = int(os.environ.get("STREAMJOIN_FUZZ_SEED", "0"))
"""Added to a test's own seeds."""
