"""How much memory this process has, and how much it may have: read from the system, without another package.

Where the system does not say (no `/proc`), nothing is measured, and only what is counted limits an engine.
"""

from __future__ import annotations

import ctypes
import os
import resource
import traceback
from pathlib import Path
from typing import Final

import pyarrow as pa

_SHARE: Final = 0.7
"""Of what the process may have, for the engine; the rest is for what is read, written and sent beside it."""
_ADDRESS_SHARE: Final = 0.9
"""Of an address space with a limit: more of it is reserved than used."""
_UNLIMITED: Final = 1 << 60
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = Path("/proc/self/statm")


def _pages() -> tuple[int, int]:
    """The pages of address space and of memory."""
    try:
        total, resident = _STATM.read_bytes().split()[:2]
    except OSError:
        return 0, 0
    return int(total), int(resident)


def used() -> int:
    """The bytes of memory that this process has; 0 where that can't be said."""
    return _pages()[1] * _PAGE


def excess(limit: int) -> int:
    """The bytes that this process has above `limit`, or above what its address space allows; at most 0 if none."""
    total, resident = _pages()
    address = resource.getrlimit(resource.RLIMIT_AS)[0]
    over = resident * _PAGE - limit
    return over if address == resource.RLIM_INFINITY else max(over, int(total * _PAGE - _ADDRESS_SHARE * address))


def default_limit() -> int:
    """What an engine in this process takes for itself by default."""
    return int(_SHARE * available())


def available() -> int:
    """The bytes that this process may have: the machine's, or fewer if its control group or a limit says so."""
    limits = [os.sysconf("SC_PHYS_PAGES") * _PAGE]
    limits += [
        limit for what in (resource.RLIMIT_AS, resource.RLIMIT_DATA) if (limit := resource.getrlimit(what)[0]) > 0
    ]
    limits += _group_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return min(limits)


def _group_limits(membership: Path, root: Path) -> list[int]:
    """The limits of the control groups that the process is in, of either version."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        mount, name = (root, "memory.max") if not controllers else (root / "memory", "memory.limit_in_bytes")
        group = mount / path.strip("/")
        # Within a container the path may be the host's: then the mount itself is the group.
        for place in {group, *group.parents, mount}:
            if place.is_relative_to(mount):
                found += _number(place / name)
    return found


def _number(file: Path) -> list[int]:
    try:
        limit = int(file.read_text())
    except (OSError, ValueError):
        return []
    return [limit] if 0 < limit < _UNLIMITED else []


def let_go(error: BaseException) -> None:
    """Free what the calls behind an error have in memory, which its traceback keeps, in cycles too."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        # Calls that have not returned yet can't be cleared.
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__


def release() -> None:
    """Give memory that is free back to the system, so that what is measured is what is used."""
    pa.default_memory_pool().release_unused()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return
