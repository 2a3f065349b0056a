"""All index kinds by name: what `index=...` of a join accepts, and what the conformance tests go through.

Invariant: a kind's name here is its class's `name`, and every kind can be created from a window size alone. A kind that
only comparisons use is imported when it is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterator, Mapping

from streamjoin.indexes.base import Index
from streamjoin.indexes.btree import BTreeIndex
from streamjoin.indexes.chained import BChainIndex, IBChainIndex
from streamjoin.indexes.hashed import HashedIndex
from streamjoin.indexes.im_tree import ImTreeIndex
from streamjoin.indexes.immutable_btree import ImmutableBTreeIndex
from streamjoin.indexes.pim_tree import PimTreeIndex
from streamjoin.indexes.scan import ScanIndex
from streamjoin.model.errors import SpecError

_KINDS: dict[str, type[Index]] = {
    kind.name: kind
    for kind in (
        ScanIndex,
        HashedIndex,
        BTreeIndex,
        ImmutableBTreeIndex,
        BChainIndex,
        IBChainIndex,
        ImTreeIndex,
        PimTreeIndex,
    )
}
# Kinds that only comparisons use: module and class.
_ON_DEMAND = {"bw_tree": ("streamjoin.indexes.bw_tree", "BwTreeIndex")}


class Kinds(Mapping[str, type[Index]]):
    """The kinds of index by name; those of `_ON_DEMAND` are imported by the first access."""

    def __getitem__(self, name: str) -> type[Index]:
        """The class of a kind."""
        if name in _ON_DEMAND:
            module, kind = _ON_DEMAND[name]
            found: type[Index] = getattr(importlib.import_module(module), kind)
            return found
        return _KINDS[name]

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter((*_KINDS, *_ON_DEMAND))

    def __len__(self) -> int:
        """How many there are."""
        return len(_KINDS) + len(_ON_DEMAND)

    def __contains__(self, name: object) -> bool:
        """Whether there is a kind of this name; it is not imported for that."""
        return name in _KINDS or name in _ON_DEMAND


INDEXES = Kinds()
INCREMENTAL = (*(name for name, kind in _KINDS.items() if kind.capabilities.incremental), *_ON_DEMAND)
"""The kinds that take entries one by one."""


def settings_of(name: str) -> dict[str, bool]:
    """The settings of a kind of index, and whether each must be a whole number."""
    parameters = inspect.signature(INDEXES[name]).parameters
    return {name: "float" not in str(p.annotation) for name, p in parameters.items() if name != "window"}


def check_settings(name: str, settings: Mapping[str, object]) -> None:
    """Reject settings that the index does not have or that are not numbers; the index itself checks ranges."""
    known = settings_of(name)
    for key, value in settings.items():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            can = f"it takes {', '.join(known)}" if known else "it takes none"
            hint = f"did you mean {near[0]!r}?" if near else can
            raise SpecError(f"index_options= of {name!r} does not know {key!r}; {hint}")
        kinds = (int,) if known[key] else (int, float)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
            raise SpecError(f"index_options {key}={value!r} is not a {'whole ' if known[key] else ''}number")


def make_index(name: str, window: int | None = None, **settings: float) -> Index:
    """An empty index of a kind; `window` is the number of live entries to expect, where that is known."""
    if name not in INDEXES:
        raise SpecError(f"index={name!r} is not one of {sorted(INDEXES)}")
    check_settings(name, settings)
    kind: type = INDEXES[name]
    index: Index = kind(window=window, **settings)
    return index
