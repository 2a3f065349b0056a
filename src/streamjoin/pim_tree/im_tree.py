"""IM-Tree: T_I takes the inserts, T_S holds the rest, merged at m * w (SIGMOD paper, section 3.2).

T_S and the merge are one for both such trees; a `MutablePart` is their T_I: one B+-tree here, sub-indexes in
`pim_tree`. Invariant: T_S is sorted by (word, seq) and older than all of T_I. A merge
first writes T_I as a run to the far end of its output buffer, where the output cannot overtake it; this avoids a third
buffer. A buffer has room for the live entries and a few more, as the others are left out of the output: a merge
allocates only where the window has outgrown that.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from streamjoin.indexes.base import I64, Capabilities, Index, arena, demand, pages
from streamjoin.indexes.btree import nodes_for
from streamjoin.indexes.nodes import check_shape, check_tree
from streamjoin.indexes.registry import register_index
from streamjoin.kernels.trees import btree, css
from streamjoin.kernels.trees.css import CSS_FANOUT, INNER, LEAF_SIZE, LIMIT, PENDING, STORED, WORDS
from streamjoin.kernels.trees.entries import HEAD_WORDS, LARGEST, MERGE, MIN_SEQ, SIZE, TICKS, TIMED
from streamjoin.kernels.trees.task import read_cycles
from streamjoin.model.errors import SpecError
from streamjoin.pim_tree.kernels import im

SMALLEST_RUN = 256  # merging fewer entries than this costs more than searching them
_EXPIRED_SHARE = 8  # of T_I's entries as many may come before older ones are known to have expired


class MutablePart(Protocol):
    """T_I: where new entries are until the next merge, in the arena `mem` of its index."""

    def sections(self, room: int) -> dict[str, int]:
        """Arena words by component, beside a T_S of at most `room` entries; B+-tree nodes are counted apart."""
        ...

    def nodes(self, limit: int, room: int) -> int:
        """The B+-tree nodes for `limit` entries beside a T_S of at most `room`."""
        ...

    def adapt(self, mem: I64, settled: bool) -> None:
        """Learn from the entries until this merge; `settled`: the window is full."""
        ...

    def clear(self, mem: I64, at: int, first_node: int) -> None:
        """Begin empty along a new T_S, with sections from `at` and nodes from `first_node` on."""
        ...

    def unload(self, mem: I64, out: I64, run: int, apart: int) -> int:
        """Write the entries in order to `out`: words from `run` on, seqs `apart` behind them; returns how many."""
        ...

    def check(self, mem: I64, oldest: int) -> None:
        """Raise AssertionError if T_I is damaged, or has an entry that is not newer than `oldest`."""
        ...


class SingleTree:
    """One B+-tree as T_I."""

    def sections(self, room: int) -> dict[str, int]:  # noqa: ARG002
        """Nothing but nodes."""
        return {}

    def nodes(self, limit: int, room: int) -> int:  # noqa: ARG002
        """The nodes of a tree with `limit` entries."""
        return nodes_for(limit, btree.MOST_KEYS)

    def adapt(self, mem: I64, settled: bool) -> None:
        """Do nothing: one tree fits every distribution."""

    def clear(self, mem: I64, at: int, first_node: int) -> None:  # noqa: ARG002
        """Begin with an empty tree."""
        im.clear_tree(mem, first_node)

    def unload(self, mem: I64, out: I64, run: int, apart: int) -> int:
        """Write the leaves in order."""
        return int(im.unload(mem, out, run, apart))

    def check(self, mem: I64, oldest: int) -> None:
        """Test the tree and its size."""
        entries = check_tree(mem, int(mem[btree.TREE]))
        demand(entries.shape[0] == mem[PENDING], "T_I has lost count")
        demand(np.all(entries[:, 1] > oldest), "T_I holds an entry older than T_S")


class MergedIndex(Index):
    """T_S with some T_I in front; `merge_ratio` is the paper's m, the share of the window that T_I may hold."""

    capabilities = Capabilities(merges=True)

    def __init__(
        self,
        part: MutablePart,
        window: int | None,
        merge_ratio: float | None,
        leaf_size: int,
        fanout: int,
        smallest_run: int = SMALLEST_RUN,
    ) -> None:
        if merge_ratio is not None and not 0 < merge_ratio <= 1:
            raise SpecError(f"merge_ratio={merge_ratio} is not in (0, 1]: it is the share of the window kept unmerged")
        check_shape(leaf_size, fanout)
        self.merge_ratio = merge_ratio if merge_ratio is not None else self.choose_ratio(window)
        self.leaf_size = leaf_size
        self.fanout = fanout
        self.smallest_run = smallest_run
        self._part = part
        self._lay(window or 0)
        self._adopt(0)

    @staticmethod
    def choose_ratio(window: int | None) -> float:
        """The merge ratio that costs least: a merge moves the whole window, a large T_I slows every search."""
        if window is None or window < 1 << 18:
            return 1 / 8
        return 1 / 16 if window < 1 << 22 else 1 / 32

    # -- the arena -------------------------------------------------------------------------------------

    def _limit(self, stored: int) -> int:
        return max(self.smallest_run, int(self.merge_ratio * stored))

    def _lay(self, stored: int) -> None:
        """Allocate an arena for `stored` entries in T_S, some that have expired, and the corresponding T_I."""
        limit = self._limit(stored)
        slack = limit // _EXPIRED_SHARE if limit > self.smallest_run else limit
        room = pages(stored + slack + self.leaf_size + css.LANES)
        self._sizes = {"separators": self._separator_words(room), **self._part.sections(room)}
        self._sizes |= {"T_S": 2 * room, "merge buffer": 2 * room}
        nodes = self._part.nodes(self._limit(room), room)
        before = HEAD_WORDS + sum(self._sizes.values())
        self.mem = arena(before + nodes * btree.NODE)
        self._sizes["nodes"] = nodes * btree.NODE
        self._laid, self._room = stored, room
        self._first_node = before // btree.NODE
        self.mem[btree.FANOUT] = btree.MOST_KEYS
        self.mem[btree.NODES] = self._first_node + nodes
        self.mem[LEAF_SIZE] = self.leaf_size
        self.mem[CSS_FANOUT] = self.fanout
        self.mem[INNER] = HEAD_WORDS
        self.mem[css.SEQS] = room
        self.mem[WORDS] = self._first_buffer

    def _separator_words(self, room: int) -> int:
        self.mem = np.zeros(HEAD_WORDS, dtype=np.int64)
        self.mem[LEAF_SIZE], self.mem[CSS_FANOUT] = self.leaf_size, self.fanout
        return pages(int(css.lay_levels(self.mem, room)))

    @property
    def _first_buffer(self) -> int:
        return self._first_node * btree.NODE - 4 * self._room

    # -- merging ---------------------------------------------------------------------------------------

    def maintain(self) -> None:
        """Merge the full T_I."""
        self.merge()

    def merge(self) -> None:
        """Merge T_I into T_S, drop expired entries, and attach an empty T_I."""
        ticks = read_cycles() if self.mem[TIMED] else 0
        target, count = self._unload()
        room = self._room
        stored = css.merge_runs(
            self.mem,
            int(self.mem[WORDS]),
            int(self.mem[STORED]),
            room,
            target + room - count,
            count,
            room,
            target,
            room,
        )
        self.mem[WORDS] = target
        self._adopt(stored)
        if self.mem[TIMED]:
            self.mem[TICKS + MERGE] += read_cycles() - ticks

    def _unload(self) -> tuple[int, int]:
        """Write T_I to the far end of the buffer that the merge writes; returns where that begins, and the count."""
        target, stored = self._target(), int(self.mem[STORED])
        run = target + self._room - int(self.mem[PENDING])
        count = self._part.unload(self.mem, self.mem, run, self._room)
        words, seqs = (self.mem[at : at + count] for at in (run, run + self._room))
        # No two entries have one seq, so this many of T_S are live at the most.
        live = min(stored, max(0, int(seqs.min(initial=LARGEST)) - self.min_seq))
        if not self._fits(live + count):
            words, seqs = words.copy(), seqs.copy()
            self._make_room(stored, live + count)
            target = self._target()
            run = target + self._room - count
            self.mem[run : run + count] = words
            self.mem[run + self._room : run + self._room + count] = seqs
        return target, count

    def _target(self) -> int:
        """Where the buffer without T_S begins."""
        first = self._first_buffer
        return first + 2 * self._room if self.mem[WORDS] == first else first

    def _make_room(self, stored: int, entries: int) -> None:
        """Move the `stored` entries of T_S to a larger arena unless `entries` fit into its place, and T_I beside it."""
        enough = all(words <= self._sizes[name] for name, words in self._part.sections(self._room).items())
        if enough and self._fits(entries):
            return
        old, room, at = self.mem, self._room, int(self.mem[WORDS])
        self._lay(self._laid if self._fits(entries) else entries + stored // 4)
        self._carry(old)
        self.mem[STORED] = stored
        for part in (0, 1):
            to = int(self.mem[WORDS]) + part * self._room
            self.mem[to : to + stored] = old[at + part * room : at + part * room + stored]

    def _fits(self, entries: int) -> bool:
        return entries + self.leaf_size + css.LANES <= self._room

    def _adopt(self, stored: int) -> None:
        """Make the first `stored` entries of the current buffer T_S, with an empty T_I and room to merge it."""
        self._part.adapt(self.mem, bool(self.mem[LIMIT] > self.smallest_run))
        self._make_room(stored, stored)
        self.mem[STORED] = self.mem[SIZE] = stored
        used = int(css.lay_levels(self.mem, stored))
        inner = int(self.mem[INNER])
        css.build_levels(self.mem, int(self.mem[WORDS]), stored, inner, inner + used)
        self.mem[LIMIT] = self._limit(stored)
        self._part.clear(self.mem, HEAD_WORDS + self._sizes["separators"], self._first_node)

    # -- the rest of the protocol ----------------------------------------------------------------------

    def reset(self) -> None:
        """Remove all entries."""
        self.mem[MIN_SEQ] = 0
        self._adopt(0)

    def load(self, words: I64, seqs: I64) -> None:
        """Build T_S at once from entries in seq order."""
        order = np.argsort(words, kind="stable")
        self._make_room(0, words.size)
        at = int(self.mem[WORDS])
        self.mem[at : at + words.size] = words[order]
        self.mem[at + self._room : at + self._room + words.size] = seqs[order]
        self._adopt(words.size)

    def _stored(self) -> tuple[I64, I64]:
        at, count = int(self.mem[WORDS]), int(self.mem[STORED])
        return self.mem[at : at + count], self.mem[at + self._room : at + self._room + count]

    def held(self) -> tuple[I64, I64]:
        """All words and seqs: T_S, then T_I."""
        pending = int(self.mem[PENDING])
        run = np.empty(2 * pending, dtype=np.int64)
        self._part.unload(self.mem, run, 0, pending)
        words, seqs = self._stored()
        return np.concatenate([words, run[:pending]]), np.concatenate([seqs, run[pending:]])

    def settings(self) -> dict[str, float]:
        """The merge ratio and the shape of T_S."""
        return {"merge_ratio": self.merge_ratio, "leaf_size": self.leaf_size, "fanout": self.fanout}

    def sections(self) -> dict[str, int]:
        """Arena words per component."""
        return dict(self._sizes)

    def check(self) -> None:
        """Test T_S and its separators, then T_I."""
        words, seqs = self._stored()
        order = np.lexsort((seqs, words))
        demand(np.array_equal(order, np.arange(order.size)), "T_S is not sorted by (word, seq)")
        leaf_ends = words[self.leaf_size - 1 :: self.leaf_size][: max(0, -(-words.size // self.leaf_size) - 1)]
        inner = int(self.mem[INNER])
        demand(np.array_equal(self.mem[inner : inner + leaf_ends.size], leaf_ends), "separators do not match T_S")
        demand(len(self) == words.size + self.mem[PENDING], "the size is off")
        demand(self.mem[PENDING] <= self.mem[LIMIT], "T_I is overdue for a merge")
        self._part.check(self.mem, int(seqs.max(initial=-1)))


@register_index
class ImTreeIndex(MergedIndex):
    """The IM-Tree: one B+-tree takes the inserts."""

    name = "im_tree"
    task = staticmethod(im.task)

    def __init__(
        self,
        window: int | None = None,
        merge_ratio: float | None = None,
        leaf_size: int = 32,
        fanout: int = 32,
        smallest_run: int = SMALLEST_RUN,
    ) -> None:
        super().__init__(SingleTree(), window, merge_ratio, leaf_size, fanout, smallest_run)
