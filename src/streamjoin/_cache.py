"""Where files that can always be made again are kept between processes."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`streamjoin` under XDG_CACHE_HOME, or under ~/.cache; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "streamjoin"
