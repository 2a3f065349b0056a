"""Variables of the workers' environment that we set on the driver and read where workers begin."""

from __future__ import annotations

from typing import Final

MORE_WARMING: Final = "STREAMJOIN_WARMING"
"""Modules with a `warm` of their own, with commas between: for who needs other kernels than `spark.join`."""
