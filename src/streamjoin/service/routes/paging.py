"""Lists in parts: `limit` items after a `cursor`.

A cursor holds the key of the last item that was sent, not its place: items that come or go between two requests are
neither repeated nor skipped.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Query

from streamjoin.service.web.problems import Problem

T = TypeVar("T")
Key = tuple[float | str, ...]
MOST = 10_000
Limit = Annotated[int | None, Query(ge=1, le=MOST, description="Maximum number of items; all if not given.")]
Cursor = Annotated[
    str | None, Query(max_length=400, description="`next` of the previous response; from the beginning if not given.")
]


def page(
    items: Sequence[T], key: Callable[[T], Key], limit: int | None, cursor: str | None
) -> tuple[list[T], str | None]:
    """The items after a cursor in the order of their keys, and the cursor of the next ones.

    Raises:
        Problem: it is no cursor of such a list.
    """
    ordered = sorted(items, key=key)
    if cursor is not None:
        after = _key_of(cursor)
        try:
            ordered = [item for item in ordered if key(item) > after]
        except TypeError:
            raise _no_cursor() from None
    if limit is None or len(ordered) <= limit:
        return ordered, None
    return ordered[:limit], _cursor_of(key(ordered[limit - 1]))


def _cursor_of(key: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).decode("ascii")


def _key_of(cursor: str) -> Key:
    try:
        key = json.loads(base64.b64decode(cursor, b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        raise _no_cursor() from None
    if not isinstance(key, list) or not all(isinstance(part, float | int | str) for part in key):
        raise _no_cursor()
    return tuple(key)


def _no_cursor() -> Problem:
    return Problem(422, "invalid-request", "cursor: it is not the `next` of a response of this list")
