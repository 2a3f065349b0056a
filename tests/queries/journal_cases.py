"""For the tests of the engine's log: two streams, a join of both, and a process that dies at a given write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import Engine, Stream
from streamjoin.storage import pieces

SCHEMA = pa.schema({"k": pa.int64(), "p": pa.int64(), "t": pa.int64()})
LEFT, RIGHT = (Stream(name, SCHEMA, "t") for name in ("l", "r"))
PAIRS = "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k"


def table(*found: tuple[int, int, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in found], SCHEMA)


def opened(checkpoint: Path | None = None, **options: Any) -> Engine:
    """An engine that has both streams."""
    engine = Engine(checkpoint=checkpoint, **options)
    for name in "lr":
        engine.register(name, schema=SCHEMA, time="t")
    return engine


class Killed(BaseException):
    """The process is gone."""


@contextlib.contextmanager
def killed_at(write: int, after: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Die at this write, before or after its file appears, and write nothing from then on."""
    left = [write]
    finish = pieces.atomic._finish

    def dying(self: Any) -> None:
        if left[0] < 0:
            raise Killed
        left[0] -= 1
        if left[0] >= 0 or after:
            finish(self)
        if left[0] < 0:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(pieces.atomic, "_finish", dying)
        yield
