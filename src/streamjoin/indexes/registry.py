"""All index kinds by name: what `index=...` of a join accepts, and what the conformance tests go through.

Invariant: a kind's name here is its class's `name`, and every kind can be created from a window size alone. Those of
the package register by the call that is there for everyone; their modules are imported when they are asked for.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Literal, TypeVar

from streamjoin._lazy import Registered
from streamjoin.indexes.base import Index
from streamjoin.model.errors import SpecError

I = TypeVar("I", bound=Index)  # noqa: E741

IndexName = Literal["scan", "hashed", "btree", "im_tree", "pim_tree"]
"""The package's own names, for editors; others can be registered."""
INDEXES: Registered[type[Index]] = Registered(
    "index",
    {
        "scan": "streamjoin.indexes.scan",
        "hashed": "streamjoin.indexes.hashed",
        "btree": "streamjoin.indexes.btree",
        "im_tree": "streamjoin.pim_tree.im_tree",
        "pim_tree": "streamjoin.pim_tree.pim_tree",
    },
    {
        "b_chain": "benchmarks.papers.chain.index",
        "bw_tree": "benchmarks.papers.bw_tree.index",
        "ib_chain": "benchmarks.papers.chain.index",
    },
)


def register_index(kind: type[I]) -> type[I]:
    """Make a kind of index one that `index=` takes, under its `name`; also as a decorator of its class.

    Joins run over it with `algorithm="indexed"`, and `streamjoin.testing.conformance` checks it. A module may register
    a name again; another module may not.

    Args:
        kind: a subclass of `streamjoin.indexes.base.Index`, which `kind(window=...)` makes an empty index of; further
            parameters are what `index_options=` may set.

    Raises:
        SpecError: it is no such class, or its name is taken.
    """
    if not (isinstance(kind, type) and issubclass(kind, Index)):
        raise SpecError(f"{kind!r} is no index: register a subclass of streamjoin.indexes.base.Index")
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise SpecError(f"{kind.__name__} is no index yet: it does not define {missing}")
    lacking = [name for name in ("name", "task") if not hasattr(kind, name)]
    if lacking:
        raise SpecError(f"{kind.__name__} is no index yet: the class has no attribute {' and no '.join(lacking)}")
    try:
        inspect.signature(kind).bind(window=None)
    except TypeError:
        raise SpecError(f"{kind.__name__}(window=...) must make an empty index, without further arguments") from None
    INDEXES.register(kind.name, kind, kind.__module__)
    return kind


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
        raise INDEXES.unknown(name, sorted(INDEXES))
    check_settings(name, settings)
    kind: type = INDEXES[name]
    index: Index = kind(window=window, **settings)
    return index
