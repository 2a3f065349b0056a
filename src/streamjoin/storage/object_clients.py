"""What the log needs of an object store and Arrow lacks: a write that fails if the object exists, and plain removal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import BinaryIO


class NoConditionalWritesError(OSError):
    """The store can't refuse to replace an object, or the library that can ask it to is not installed."""


class ObjectClient(ABC):
    """A client of one store. Paths begin with the bucket or container; every failure is an OSError."""

    @abstractmethod
    def create(self, path: str, source: BinaryIO) -> bool:
        """Create an object unless it exists; returns whether this call created it.

        Raises:
            NoConditionalWritesError: the store has no such request. Nothing was written.
        """

    @abstractmethod
    def put(self, path: str, source: BinaryIO) -> None:
        """Create or replace an object."""

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """The content of a small object; None if it does not exist."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove an object, if it exists."""

    def delete_all(self, paths: Sequence[str]) -> None:
        """Remove objects, as far as they exist; by default one by one."""
        for path in paths:
            self.delete(path)


def split_path(path: str) -> tuple[str, str]:
    """The bucket and the key of a path."""
    bucket, _, key = path.partition("/")
    return bucket, key
