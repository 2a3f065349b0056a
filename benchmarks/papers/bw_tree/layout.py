"""The memory of Bw-Trees as seen from Python: laying an arena out, making it larger, checking a tree.

A leaf keeps up to `leaf_size` entries in order, and `chain` changes before they are written into it. Nothing here runs
while threads work on a tree. Invariant: every page is exactly one of the following: that of a node, free, retired, or
unused; `settle_pages` makes the retired ones free and deals the free ones out to the threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from benchmarks.papers.bw_tree import memory as m
from benchmarks.papers.bw_tree import nodes
from streamjoin.indexes.base import I64, arena, demand, pages
from streamjoin.kernels.trees.entries import HEAD_WORDS, LARGEST
from streamjoin.model.errors import SpecError

LEAF_SIZE = 64
CHAIN = 8
_INNER_CHAIN = 2
_LEAST_FILLED = 4  # a leaf of uniform keys is never emptier for long than one in four
_LEAST_CHILDREN = 16
_LEAST_INNER_ROOM = 6  # half of an inner node must have two children
SPARE_PAGES = 2 * (m.SPARE + m.BATCH)
_SMALLEST_WORD = -LARGEST - 1
_PADDING = 32  # words that a search may read behind the last page


Entry = tuple[int, int, int]
"""Word, seq and, in an inner node, child."""


class BwTreeSizes(NamedTuple):
    """What the pages of a tree look like."""

    leaf_size: int = LEAF_SIZE
    chain: int = CHAIN

    def check(self) -> None:
        """Refuse pages whose halves would be too full, and more records than can be numbered."""
        if not 4 <= self.leaf_size <= 1024:
            raise SpecError(f"leaf_size={self.leaf_size} of a bw_tree index is not between 4 and 1024")
        most = min(m.MOST_CHAIN, self.leaf_size // 2)
        if not 2 <= self.chain <= most:
            raise SpecError(f"chain={self.chain} of a bw_tree index is not between 2 and {most}")

    @property
    def inner_chain(self) -> int:
        """Records of an inner node."""
        return min(_INNER_CHAIN, self.chain // 2)

    @property
    def inner_room(self) -> int:
        """Children that an inner node has room for."""
        return max(_LEAST_INNER_ROOM, 2 * (self.leaf_size + self.chain) // 3)

    @property
    def words_at(self) -> int:
        """Offset of the sorted words in a page."""
        return m.SLOTS + m.SLOT * (self.chain + self.chain % 2)

    @property
    def page_words(self) -> int:
        """Words of a page, in whole cache lines."""
        return -(-(self.words_at + max(2 * (self.leaf_size + self.chain), 3 * self.inner_room)) // 8) * 8

    def pages_for(self, entries: int) -> int:
        """Pages for this many entries of uniform keys."""
        leaves = entries * _LEAST_FILLED // self.leaf_size
        return leaves + leaves // min(_LEAST_CHILDREN, self.inner_room // 3) + 1


def lay_tree(shape: BwTreeSizes, n_pages: int, threads: int, ring: int) -> tuple[I64, int]:
    """An arena for a tree, and where in it `ring` words lie that are the caller's."""
    n_pages += 1  # page 0 stands for none
    threads_at = HEAD_WORDS
    table = threads_at + pages(threads * m.THREAD_WORDS)
    links = table + pages(n_pages)
    ring_at = links + pages(n_pages)
    first = ring_at + pages(ring)
    mem = arena(pages(first + n_pages * shape.page_words + _PADDING))
    mem[threads_at:links] = 0
    mem[[m.TABLE, m.LINKS_OF_FREE, m.PAGES]] = table, links, first
    mem[[m.PAGE_WORDS, m.MOST_PAGES, m.MOST_NODES]] = shape.page_words, n_pages, n_pages
    mem[[m.CHAIN, m.INNER_CHAIN, m.LEAF_MOST]] = shape.chain, shape.inner_chain, shape.leaf_size
    # One more for the child of a neighbour that is removed.
    mem[m.INNER_MOST] = shape.inner_room - shape.inner_chain - 1
    mem[[m.WORDS_AT, m.SEQS_APART]] = shape.words_at, shape.leaf_size + shape.chain
    mem[m.INNER_APART] = shape.inner_room
    mem[[m.THREADS, m.THREADS_AT]] = threads, threads_at
    return mem, ring_at


def empty_tree(mem: I64) -> None:
    """Make a tree the empty one; the words of its head that are not its own stay."""
    mem[int(mem[m.THREADS_AT]) : int(mem[m.LINKS_OF_FREE])] = 0
    mem[[m.USED_PAGES, m.USED_NODES, m.EPOCH]] = 1
    _threads(mem)[:, m.ANNOUNCED] = m.OFFLINE
    nodes.plant(mem)


def move_tree(old: I64, mem: I64) -> None:
    """Copy a tree to an empty, larger arena; pages and nodes keep their numbers."""
    settle_pages(old)
    used_pages, used_nodes = int(old[m.USED_PAGES]), int(old[m.USED_NODES])
    mem[[m.ROOT, m.EPOCH, m.USED_PAGES, m.USED_NODES]] = old[[m.ROOT, m.EPOCH, m.USED_PAGES, m.USED_NODES]]
    for part, count in ((m.TABLE, used_nodes), (m.LINKS_OF_FREE, used_nodes), (m.PAGES, used_pages)):
        words = count * (int(mem[m.PAGE_WORDS]) if part == m.PAGES else 1)
        at, to = int(old[part]), int(mem[part])
        mem[to : to + words] = old[at : at + words]
    threads = min(len(_threads(old)), len(_threads(mem)))
    _threads(mem)[:, m.ANNOUNCED] = m.OFFLINE
    _threads(mem)[:threads] = _threads(old)[:threads]
    settle_pages(mem)


def _threads(mem: I64) -> I64:
    at, count = int(mem[m.THREADS_AT]), int(mem[m.THREADS])
    return mem[at : at + count * m.THREAD_WORDS].reshape(count, m.THREAD_WORDS)


def _page_at(mem: I64, page: int) -> int:
    return int(mem[m.PAGES]) + page * int(mem[m.PAGE_WORDS])


def _states(mem: I64) -> I64:
    at = int(mem[m.TABLE])
    return mem[at : at + min(int(mem[m.USED_NODES]), int(mem[m.MOST_NODES]))]


def settle_pages(mem: I64) -> int:
    """Free what was retired and deal out the free pages and numbers evenly; returns the number of pages in use."""
    for counter, most in ((m.USED_PAGES, m.MOST_PAGES), (m.USED_NODES, m.MOST_NODES)):
        mem[counter] = min(mem[counter], mem[most])
    states = _states(mem)
    for node in np.flatnonzero(states & m.FROZEN):
        if mem[_page_at(mem, int(states[node]) >> m.PAGE_SHIFT) + m.LINKS] == nodes.DETACHED | nodes.UNLINKED:
            states[node] = 0
    threads = _threads(mem)
    threads[:, m.FREE : m.UNFINISHED] = 0
    in_use = np.zeros(int(mem[m.USED_PAGES]), bool)
    in_use[states[states != 0] >> m.PAGE_SHIFT] = True
    in_use[0] = True
    free_pages, free_nodes = np.flatnonzero(~in_use), np.flatnonzero(states[1:] == 0) + 1
    following = int(mem[m.PAGES]) + np.arange(in_use.size) * int(mem[m.PAGE_WORDS]) + m.FOLLOWING
    for k in range(len(threads)):
        mine, mine_too = free_pages[k :: len(threads)], free_nodes[k :: len(threads)]
        mem[following[mine]] = [*mine[1:], 0][: mine.size]
        mem[int(mem[m.LINKS_OF_FREE]) + mine_too] = [*mine_too[1:], 0][: mine_too.size]
        threads[k, m.FREE] = mine[0] if mine.size else 0
        threads[k, m.FREE_COUNT] = mine.size
        threads[k, m.FREE_NODE] = mine_too[0] if mine_too.size else 0
    return int(in_use.sum()) - 1


def free_pages(mem: I64) -> int:
    """Pages that no node has, after `settle_pages`."""
    return int(_threads(mem)[:, m.FREE_COUNT].sum() + mem[m.MOST_PAGES] - mem[m.USED_PAGES])


def check_bw_tree(mem: I64) -> I64:
    """Check a tree that no thread works on; returns its entries in order, one row (word, seq) each."""
    in_use = settle_pages(mem)
    level, leftmost = int(mem[m.ROOT]) & nodes.LEVEL_MASK, int(mem[m.ROOT]) >> nodes.LEVEL_BITS
    reached = {leftmost}
    while level:
        parts = [part for _, part in _level(mem, leftmost, level, reached)]
        children = [child for part in parts for _, _, child in part]
        demand(np.all(_states(mem)[children] != 0), "an inner node leads to a node that is gone")
        demand(len({*children}) == len(children), "two entries lead to one child")
        reached.update(children)
        leftmost, level = children[0], level - 1
    leaves = list(_level(mem, leftmost, 0, reached))
    live = np.flatnonzero(_states(mem)).tolist()
    demand(reached.issuperset(live), "there are nodes that nothing leads to")
    demand(in_use == len(live), "a page is used twice, or is lost")
    rows = [(word, seq) for _, part in leaves for word, seq, _ in part]
    demand(all(one < other for one, other in pairwise(rows)), "entries are out of order, or there twice")
    for leaf, part in leaves:
        for word, seq, _ in part[:1] + part[-1:]:
            demand(nodes.descend(mem, word, seq, 0)[0] == leaf, f"a search does not find ({word}, {seq})")
    return np.array(rows, np.int64).reshape(-1, 2)


def _level(mem: I64, node: int, level: int, reached: set[int]) -> Iterator[tuple[int, list[Entry]]]:
    """The live nodes of a level with their entries, from the left; all that the level's links lead to is reached."""
    low, frozen = (_SMALLEST_WORD, -1), False
    while node:
        reached.add(node)
        state = int(_states(mem)[node])
        demand(state, "a link leads to a node that is gone")
        at = _page_at(mem, state >> m.PAGE_SHIFT)
        following = int(mem[at + m.NEXT])
        demand(mem[at + m.LEVEL] == level, "a node is linked to one of another level")
        if state & m.FROZEN:
            frozen = True
        else:
            begins = (int(mem[at + m.LOW_WORD]), int(mem[at + m.LOW_SEQ]))
            demand(begins == low or (frozen and begins > low), "a node does not begin where the one before it ends")
            part = _entries(mem, at, state, level)
            keys = [entry[:2] for entry in part]
            demand(keys == sorted(keys), "a node is not sorted")
            if level:
                demand(part and keys[0] == (_SMALLEST_WORD, -1), "an inner node has no first child")
            else:
                demand(not keys or keys[0] >= begins, "an entry is left of its leaf")
            if following:
                low = (int(mem[at + m.HIGH_WORD]), int(mem[at + m.HIGH_SEQ]))
                demand(not keys or keys[-1] < low, "an entry is right of its node")
            frozen = False
            yield node, part
        node = following


def _entries(mem: I64, at: int, state: int, level: int) -> list[Entry]:
    """What a node holds: its base, changed by the records of its chain from the oldest on."""
    apart, words = int(mem[m.INNER_APART] if level else mem[m.SEQS_APART]), at + int(mem[m.WORDS_AT])
    count = int(mem[at + m.COUNT])
    columns = [mem[words + k * apart :][:count].tolist() for k in range(2)]
    children = mem[words + 2 * apart :][:count].tolist() if level else [0] * count
    held = {(word, seq): child for word, seq, child in zip(*columns, children, strict=True)}
    chain, before = [], int(m.first_record(state))
    while before:
        record = mem[at + m.SLOTS + m.SLOT * (before - 1) :][: m.SLOT].tolist()
        chain.append(record)
        before = record[m.BEFORE] & m.HEAD_MASK
    for link, word, seq, child in reversed(chain):
        if link >> m.KIND_SHIFT == m.DELETED:
            held.pop((word, seq), None)
        else:
            held[word, seq] = child
    order = sorted(held) if chain else list(held)
    return [(*key, held[key]) for key in order]
