"""IM-Tree: T_I takes the inserts, T_S holds the rest, merged at m * w (SIGMOD paper, section 3.2).

Also the base of `pim_tree`, whose T_I is partitioned, and of `immutable_btree`, which has none. Invariant: T_S is
sorted by (word, seq) and older than all of T_I; the arena always has room for the next merge, so a merge allocates
only if the window has outgrown it. A merge first writes T_I as a run to the far end of its output buffer, where the
output cannot overtake it; this avoids a third buffer.
"""

from __future__ import annotations

import numpy as np

from streamjoin.indexes.base import I64, Capabilities, Index, arena, demand, pages
from streamjoin.indexes.btree import nodes_for
from streamjoin.indexes.nodes import check_tree
from streamjoin.kernels.trees import btree, css, im
from streamjoin.kernels.trees.css import CSS_FANOUT, INNER, LEAF_SIZE, LIMIT, PENDING, STORED, WORDS
from streamjoin.kernels.trees.entries import HEAD_WORDS, MERGE, MIN_SEQ, SIZE, TICKS, TIMED
from streamjoin.kernels.trees.task import read_cycles
from streamjoin.model.errors import SpecError

SMALLEST_RUN = 256  # merging fewer entries than this costs more than searching them


def check_shape(leaf_size: int, fanout: int) -> None:
    """Reject a shape that the kernels cannot compare eight words at a time."""
    if leaf_size < css.LANES or leaf_size % css.LANES:
        raise SpecError(f"leaf_size={leaf_size} of an immutable tree is not a multiple of {css.LANES}")
    if fanout < css.LANES or fanout & (fanout - 1):
        raise SpecError(f"fanout={fanout} of an immutable tree is not a power of two from {css.LANES} on")


class ImTreeIndex(Index):
    """Two components; `merge_ratio` is the paper's m, the share of the window that T_I may hold."""

    name = "im_tree"
    capabilities = Capabilities(merges=True)
    task = staticmethod(im.task)

    def __init__(
        self,
        window: int | None = None,
        merge_ratio: float | None = None,
        leaf_size: int = 32,
        fanout: int = 32,
        smallest_run: int = SMALLEST_RUN,
    ) -> None:
        if merge_ratio is not None and not 0 < merge_ratio <= 1:
            raise SpecError(f"merge_ratio={merge_ratio} is not in (0, 1]: it is the share of the window kept unmerged")
        check_shape(leaf_size, fanout)
        self.merge_ratio = merge_ratio if merge_ratio is not None else self.choose_ratio(window)
        self.leaf_size = leaf_size
        self.fanout = fanout
        self.smallest_run = smallest_run
        self._start(window or 0)

    @staticmethod
    def choose_ratio(window: int | None) -> float:
        """The merge ratio that costs least: a merge moves the whole window, a large T_I slows every search."""
        if window is None or window < 1 << 18:
            return 1 / 8
        return 1 / 16 if window < 1 << 22 else 1 / 32

    def _start(self, window: int) -> None:
        self._lay(window)
        self._adopt(0)

    # -- the arena -------------------------------------------------------------------------------------

    def _limit(self, stored: int) -> int:
        return max(self.smallest_run, int(self.merge_ratio * stored))

    def _lay(self, stored: int) -> None:
        """Allocate an arena for `stored` entries in T_S and the corresponding T_I."""
        limit = self._limit(stored)
        room = pages(stored + limit + self.leaf_size + css.LANES)
        self._sizes = {"separators": self._separator_words(room), **self._pending_words(room)}
        self._sizes |= {"T_S": 2 * room, "merge buffer": 2 * room}
        nodes = self._node_count(limit, room)
        before = HEAD_WORDS + sum(self._sizes.values())
        self.mem = arena(before + nodes * btree.NODE)
        self._sizes["nodes"] = nodes * btree.NODE
        self._room = room
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

    def _pending_words(self, room: int) -> dict[str, int]:  # noqa: ARG002
        return {}

    def _node_count(self, limit: int, room: int) -> int:  # noqa: ARG002
        return nodes_for(limit, btree.MOST_KEYS)

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
        target = self._first_buffer
        if self.mem[WORDS] == target:
            target += 2 * self._room
        run = target + self._room - int(self.mem[PENDING])
        count = self._unload(self.mem, run, self._room)
        stored = css.merge_runs(
            self.mem,
            int(self.mem[WORDS]),
            int(self.mem[STORED]),
            self._room,
            run,
            count,
            self._room,
            target,
            self._room,
        )
        self.mem[WORDS] = target
        self._adopt(stored)
        if self.mem[TIMED]:
            self.mem[TICKS + MERGE] += read_cycles() - ticks

    def _make_room(self, stored: int, extra: int) -> None:
        """Move T_S to a larger arena unless `extra` more entries fit beside it; T_I must be empty."""
        if self._fits(stored + extra):
            return
        old, room, at = self.mem, self._room, int(self.mem[WORDS])
        # An arena of this size has room for the corresponding T_I as well.
        self._lay(stored + max(extra - self._limit(stored), stored // 4))
        self._carry(old)
        self.mem[STORED] = stored
        for part in (0, 1):
            to = int(self.mem[WORDS]) + part * self._room
            self.mem[to : to + stored] = old[at + part * room : at + part * room + stored]

    def _fits(self, entries: int) -> bool:
        return entries + self.leaf_size + css.LANES <= self._room

    def _adopt(self, stored: int) -> None:
        """Make the first `stored` entries of the current buffer T_S, with an empty T_I and room to merge it."""
        self._make_room(stored, self._limit(stored))
        self.mem[STORED] = self.mem[SIZE] = stored
        used = int(css.lay_levels(self.mem, stored))
        inner = int(self.mem[INNER])
        css.build_levels(self.mem, int(self.mem[WORDS]), stored, inner, inner + used)
        self.mem[LIMIT] = self._limit(stored)
        self._clear()

    def _unload(self, out: I64, run: int, apart: int) -> int:
        return int(im.unload(self.mem, out, run, apart))

    def _clear(self) -> None:
        im.clear_tree(self.mem, self._first_node)

    # -- the rest of the protocol ----------------------------------------------------------------------

    def reset(self) -> None:
        """Remove all entries."""
        self.mem[MIN_SEQ] = 0
        self._adopt(0)

    def load(self, words: I64, seqs: I64) -> None:
        """Build T_S at once from entries in seq order."""
        order = np.argsort(words, kind="stable")
        self._make_room(0, words.size + self._limit(words.size))
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
        self._unload(run, 0, pending)
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
        self._check_pending(int(seqs.max(initial=-1)))

    def _check_pending(self, oldest: int) -> None:
        entries = check_tree(self.mem, int(self.mem[btree.TREE]))
        demand(entries.shape[0] == self.mem[PENDING], "T_I has lost count")
        demand(np.all(entries[:, 1] > oldest), "T_I holds an entry older than T_S")
