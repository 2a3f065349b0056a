"""Where files that can always be made again are kept between processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def cache_dir() -> Path:
    """`streamjoin` under XDG_CACHE_HOME, or under ~/.cache; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "streamjoin"


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold the host's lock at this path, if it can be made: other processes that ask for it wait."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            lock.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(lock.open("w")), fcntl.LOCK_EX)
        yield
