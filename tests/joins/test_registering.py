"""An algorithm and an index of someone else: registered, checked, run; and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, get_args

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.indexes.base import I64, Index, arena, demand
from streamjoin.indexes.registry import INDEXES, IndexName
from streamjoin.joins.base import Chunk, Pairs, Refine
from streamjoin.joins.registry import KINDS, AlgorithmName
from streamjoin.kernels.trees.entries import HEAD_WORDS, MIN_SEQ, SIZE
from streamjoin.kernels.trees.task import DONE, FULL, INSERTS, MAINTAIN_LEFT, MAINTAIN_RIGHT, ON_RIGHT, PROBES
from streamjoin.testing.conformance import check_algorithm, check_index
from tests.seeds import examples

SPEC = sj.JoinSpec(on=sj.Band("k", "k", 1), window=sj.CountWindow(20))


class EveryPair:
    """Pairs a tuple with all that its window holds; the driver tests the condition."""

    name: ClassVar[str] = "every_pair"

    def __init__(self) -> None:
        self.decides: frozenset[int] = frozenset()
        self.stored = [np.empty(0, np.int64), np.empty(0, np.int64)]

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        parts = (chunk.left, chunk.right)
        places = [part.at[part.valid_places()] for part in parts]
        self.stored = [np.append(held, chunk.own_seq[at]) for held, at in zip(self.stored, places, strict=True)]
        pairs = []
        for at, others in zip(places, reversed(self.stored), strict=True):
            for place in () if chunk.stored_only else at.tolist():
                first, last = np.searchsorted(others, (chunk.min_seq[place], chunk.stops[place]))
                pairs += [(place, seq) for seq in others[first:last].tolist()]
        probe, seq = np.array(sorted(pairs), np.int64).reshape(-1, 2).T.copy()
        return Pairs(*refine(probe, seq))

    def forget(self, left_min: int, right_min: int) -> None:
        least = (left_min, right_min)
        self.stored = [held[held >= bound] for held, bound in zip(self.stored, least, strict=True)]

    def saved(self) -> None:
        return None

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        pass

    @property
    def nbytes(self) -> int:
        return sum(held.nbytes for held in self.stored)


class Forgetful(EveryPair):
    """Finds nothing."""

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        return Pairs(np.empty(0, np.int64), np.empty(0, np.int64))


def halves(mem: I64) -> tuple[I64, I64]:
    """The words and the seqs of an arena."""
    entries = mem[HEAD_WORDS:]
    return entries[: entries.size // 2], entries[entries.size // 2 :]


def scan_lists(left: I64, right: I64, *rest: Any) -> tuple[int, int, int]:
    """What a fused kernel does, in plain Python."""
    *columns, out_probe, out_seq, start, stop = rest
    count = 0
    for i in range(start, stop):
        op, word, lo, hi, seq, min_seq, own_min = (int(column[i]) for column in columns)
        own, other = (right, left) if op & ON_RIGHT else (left, right)
        words, seqs = halves(own)
        alive = np.flatnonzero(seqs[: own[SIZE]] >= own_min)
        if op & INSERTS and alive.size == words.size:
            return (MAINTAIN_RIGHT if op & ON_RIGHT else MAINTAIN_LEFT), i, count
        if op & PROBES:
            held = int(other[SIZE])
            other_words, other_seqs = (half[:held] for half in halves(other))
            found = other_seqs[(other_words >= lo) & (other_words <= hi) & (other_seqs >= max(min_seq, other[MIN_SEQ]))]
            if count + found.size > out_seq.size:
                return FULL, i, count
            out_probe[count : count + found.size], out_seq[count : count + found.size] = i, found
            count += found.size
        own[MIN_SEQ] = max(own[MIN_SEQ], own_min)
        words[: alive.size], seqs[: alive.size] = words[alive], seqs[alive]
        own[SIZE] = alive.size
        if op & INSERTS:
            words[own[SIZE]], seqs[own[SIZE]] = word, seq
            own[SIZE] += 1
    return DONE, stop, count


class EntryList(Index):
    """Entries in the order of their arrival."""

    name = "entry_list"
    task = staticmethod(scan_lists)

    def __init__(self, window: int | None = None, room: int = 8) -> None:
        self.mem = arena(HEAD_WORDS + 2 * room)

    def maintain(self) -> None:
        old, (words, seqs) = self.mem, self.held()
        self.mem = arena(HEAD_WORDS + 4 * words.size)
        self._carry(old)
        new_words, new_seqs = halves(self.mem)
        new_words[: words.size], new_seqs[: seqs.size] = words, seqs

    def reset(self) -> None:
        self.mem[[SIZE, MIN_SEQ]] = 0

    def held(self) -> tuple[I64, I64]:
        words, seqs = (half[: len(self)].copy() for half in halves(self.mem))
        return words, seqs

    def sections(self) -> dict[str, int]:
        return {"entries": self.mem.size - HEAD_WORDS}

    def check(self) -> None:
        demand(np.all(np.diff(self.held()[1]) > 0), "seqs ascend")


class Unexpiring(EntryList):
    """Never forgets."""

    name = "unexpiring"

    def expire(self, min_seq: int) -> None:
        pass


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    yield
    for name in ("every_pair", "forgetful"):
        KINDS.entries.pop(name, None)
    for name in ("entry_list", "unexpiring"):
        INDEXES.entries.pop(name, None)


def rows(algorithm: str, **options: Any) -> pa.Table:
    table = pa.table({"k": np.random.default_rng(2).integers(0, 60, 200), "id": np.arange(200)})
    with sj.open(SPEC, algorithm, **options) as join:
        return pa.concat_tables([join.push(table.slice(at, 50), table.slice(at, 50)) for at in range(0, 200, 50)])


def test_an_algorithm_of_someone_else() -> None:
    sj.register_algorithm("every_pair", lambda *_: EveryPair())
    check_algorithm("every_pair", examples(60))
    assert rows("every_pair") == rows("sweep")
    with sj.live(SPEC, "every_pair") as join:
        join.source("left").push([{"k": 1}])
        join.source("right").push([{"k": 2}])
        join.close()
        assert sum(table.num_rows for table in join) == 1


def test_an_index_of_someone_else() -> None:
    assert sj.register_index(EntryList) is EntryList
    check_index("entry_list", examples(10))
    check_index("entry_list", examples(5), room=1)
    assert rows("indexed", index="entry_list", index_options={"room": 2}) == rows("sweep")
    sj.register_algorithm("every_pair", lambda *_: EveryPair(), indexes=["entry_list"], options=["size"])
    assert rows("every_pair", index="entry_list", options={"size": 1}) == rows("sweep")
    with pytest.raises(sj.NotSupportedError, match="it runs over 'entry_list'"):
        rows("every_pair", index="btree")


@pytest.mark.slow
def test_the_checks_find_what_is_wrong() -> None:
    sj.register_algorithm("forgetful", lambda *_: Forgetful())
    with pytest.raises(AssertionError, match="forgetful gives"):
        check_algorithm("forgetful", 60)
    sj.register_index(Unexpiring)
    with pytest.raises(AssertionError):
        check_index("unexpiring", 10)
    for check in (check_algorithm, check_index):
        with pytest.raises(sj.SpecError, match="'nothing_like_it' is not known"):
            check("nothing_like_it")


def test_a_module_may_register_again_and_no_other_one() -> None:
    for _ in range(2):
        sj.register_algorithm("every_pair", lambda *_: EveryPair())
        sj.register_index(EntryList)

    def build(*_: Any) -> EveryPair:
        return EveryPair()

    build.__module__ = "elsewhere"
    with pytest.raises(sj.SpecError, match=rf"algorithm='every_pair' is taken by {__name__}"):
        sj.register_algorithm("every_pair", build)
    with pytest.raises(sj.SpecError, match=r"algorithm='sweep' is taken by streamjoin\.joins\.batch\.sweep"):
        sj.register_algorithm("sweep", build)
    with pytest.raises(sj.SpecError, match="index='btree' is taken"):
        sj.register_index(type("Other", (EntryList,), {"name": "btree"}))


@pytest.mark.parametrize(
    ("name", "build", "options", "says"),
    [
        ("auto", EveryPair, {}, "'auto' is the package's own"),
        ("asof", EveryPair, {}, "'asof' is the package's own"),
        ("", EveryPair, {}, "can't be registered: a name is like 'my_algorithm'"),
        (7, EveryPair, {}, "algorithm=7 can't be registered"),
        ("mine", None, {}, "build= of algorithm 'mine' is called"),
        ("mine", EveryPair, {"live": 1}, "live= of algorithm 'mine' is called"),
        ("mine", EveryPair, {"indexes": ["btree", "b_tree"]}, "index='b_tree' is not known"),
    ],
)
def test_what_is_no_algorithm(name: Any, build: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(sj.SpecError, match=says):
        sj.register_algorithm(name, build, **options)


class Unfinished(Index):
    name = "unfinished"


class Nameless(EntryList):
    name: ClassVar[Any] = None


class Demanding(EntryList):
    name = "demanding"

    def __init__(self, room: int) -> None:
        super().__init__(None, room)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (dict, "is no index: register a subclass of streamjoin.indexes.base.Index"),
        ("btree", "'btree' is no index"),
        (Unfinished, "does not define check, held, maintain, reset, sections"),
        (Nameless, "index=None can't be registered"),
        (Demanding, r"Demanding\(window=...\) must make an empty index"),
    ],
)
def test_what_is_no_index(kind: Any, says: str) -> None:
    with pytest.raises(sj.SpecError, match=says):
        sj.register_index(kind)


@pytest.mark.parametrize(
    ("registry", "name", "home"),
    [
        (KINDS, "three_step", "benchmarks.papers.three_step"),
        (KINDS, "round_robin", "benchmarks.papers.round_robin"),
        (INDEXES, "bw_tree", "benchmarks.papers.bw_tree.index"),
    ],
)
def test_the_rivals_of_the_papers_say_where_they_are(
    registry: Any, name: str, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another test may have imported them.
    monkeypatch.delitem(registry.entries, name, raising=False)
    with pytest.raises(sj.SpecError, match=f"only run by experiments: import {home}"):
        sj.open(SPEC, name) if registry is KINDS else sj.open(SPEC, "indexed", index=name)


def test_editors_know_the_names_of_the_package() -> None:
    algorithms = {name for name, kind in KINDS.items() if kind.build.__module__.startswith("streamjoin.")}
    assert set(get_args(AlgorithmName)) == {"auto", *algorithms}
    assert set(get_args(IndexName)) == {n for n, kind in INDEXES.items() if kind.__module__.startswith("streamjoin.")}
