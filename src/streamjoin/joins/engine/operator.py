"""The output half of the driver: turns tuples in gate order into result rows.

It owns positions, windows, expiry and late materialization; the algorithm only pairs. Results and state do not
depend on how the tuples were cut into calls: each call is cut into chunks that suit the windows, and into smaller
ones if a chunk would have too many rows.

A failed call is undone: `saved` is cheap and returns a function that restores the stored tuples. An algorithm that
can't be restored is rebuilt from the stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.jit.calls import Cut, Each, KernelCalls
from streamjoin.joins import auto
from streamjoin.joins.base import (
    Algorithm,
    Chunk,
    Elastic,
    Fillable,
    Keep,
    Overflow,
    Pairs,
    SidePart,
    TaskAlgorithm,
    capabilities_of,
    task_algorithm,
)
from streamjoin.joins.engine.adapting import Adapting, AdaptingIntervals, Counted
from streamjoin.joins.engine.metrics import Counts
from streamjoin.joins.engine.ordered import Ordered, Work
from streamjoin.joins.engine.push_plan import EncodedPush, PushPlan
from streamjoin.joins.engine.refine import Refinement, Tally, TimeReach, positions, too_new
from streamjoin.joins.engine.result_rows import later_time
from streamjoin.joins.kinds.base import KindLayer, KindRows, StoredChunk, Tail, gather_kind, interleaved
from streamjoin.joins.kinds.layers import kind_layer
from streamjoin.joins.registry import KINDS, AlgorithmChoice
from streamjoin.kernels.gather import first_at_least, leading_below, sides_of_pairs
from streamjoin.kernels.positions import UPTO, set_positions
from streamjoin.model.binding import BoundSpec, matched_columns
from streamjoin.model.common_types import as_type
from streamjoin.windows.buffer import Restore
from streamjoin.windows.clock import NEVER, minus, plus
from streamjoin.windows.encoding import Encoded, SideEncoder
from streamjoin.windows.intervals import ends
from streamjoin.windows.store import SideStore, gather_values
from streamjoin.windows.workers import Workers, cuts

Encode = Callable[[int, int, int], Encoded]
"""The words of a side's tuples: the side, the first position and their number."""

_NO_POSITIONS = (0, 0)
_LEAST_CHUNK, _LEAST_CHUNK_OF_TASKS = 1 << 12, 1 << 14
_LARGEST_CHUNK = 1 << 18
# A step costs each worker some time however little it has to do.
_LARGEST_SHARED_CHUNK = 1 << 19
_MANY_WORKERS = 4
# Tasks are taken tuple by tuple in either way. Other algorithms take a chunk at once, and the general way then does the
# steps before and after column by column, which is faster for long columns.
_LARGEST_COMPILED = 1 << 14
_LARGEST_COMPILED_TASK = 1 << 17
# A larger push is cut into chunks.
_MOST_AT_ONCE = 1 << 12
# Fewer rows are not worth a thread.
_LEAST_PART = 1 << 13
# How many tuples of a side are looked at for the lengths of their intervals.
_SAMPLED = 96


class Operator:
    """One running join over ordered input."""

    def __init__(
        self,
        bound: BoundSpec,
        choice: AlgorithmChoice,
        workers: Workers,
        counts: Counts,
        general_pushes: int | None = None,
    ) -> None:
        """`general_pushes` come before compiled steps, whether their kernels are compiled or not."""
        self.bound = bound
        self._general_pushes = general_pushes
        self.counts = counts
        self._workers = workers
        self._self_join = bound.spec.self_join
        self.has_times = has_times = bound.spec.order == "event_time" or any(w.kind == "time" for w in bound.windows)
        right_payload = _right_payload(bound)
        self.stores = (
            SideStore(bound.left_schema, len(bound.terms), has_times),
            SideStore(right_payload, len(bound.terms), has_times),
        )
        self._payload = (self.stores[0], self.stores[0] if self._self_join else self.stores[1])
        self._counted_windows: tuple[int, int] | None = None
        if all(window.kind == "count" for window in bound.windows):
            # The arriving tuple of a self-join is one of its window.
            left, right = (window.size - int(self._self_join) for window in bound.windows)
            self._counted_windows = left, right
        self._encoders = (SideEncoder(bound, "left"), SideEncoder(bound, "right"))
        self.choice: AlgorithmChoice
        self.algorithm: Algorithm
        self._tasks: TaskAlgorithm | None
        self._open_terms: tuple[int, ...]
        self._most_at_once: int
        self._use(KINDS[choice.name].build(bound, choice, workers), choice)
        # The counters of algorithms that were replaced.
        self._counted: dict[str, int] = {}
        self.pairing = False
        """Whether the algorithm has begun to change since the state was saved."""
        # The pushes that were scanned until another algorithm takes over.
        self._scans = 0
        by_lengths = not bound.index and bound.intervals is not None
        self.adapting = (AdaptingIntervals if by_lengths else Adapting)(bound, self.workers)
        # The position from which a side's ticks are sorted.
        self._descent = [0, 0]
        self._kind = kind_layer(bound, self.stores)
        self.plan = self._planned()
        """How pushes go through kernels, where they can."""
        self.no_rows = bound.schema.empty_table()
        self._later: Array | Callable[[], Array] = np.empty(0, np.int64)

    @property
    def later(self) -> Array:
        """For each row of the newest step, the place in it of the later tuple, or of the one that decided the row."""
        return self._later() if callable(self._later) else self._later

    @property
    def workers(self) -> int:
        """The number of workers of the join."""
        return self._workers.n

    # -- pushes that are joined at once --------------------------------------------------------------------

    def at_once(self, schemas: Sequence[pa.Schema | None]) -> Operator | None:
        """This operator, if `join_at_once` takes pushes of these schemas from now on.

        Nothing is left to decide in arrival order over count windows, by tasks whose pairs need no further test.
        """
        plan, bound = self.plan, self.bound
        if self._most_at_once:
            return self
        if plan is None or self._tasks is None or not plan.is_ready or bound.residual is not None or self._open_terms:
            return None
        if bound.spec.order != "arrival" or self._counted_windows is None or self._self_join:
            return None
        if [len(schema) for schema in schemas if schema] != [len(bound.left_schema), len(bound.right_schema)]:
            # Some columns are not stored.
            return None
        most, index = _MOST_AT_ONCE, self.choice.index
        if self.choice.adaptive and index is not None:
            # Beyond this many tuples `begin` may want another algorithm.
            most = auto.most_for_index(auto.expected_window(bound), index, most, self.workers, self.adapting.found)
        self._most_at_once = most
        return self

    def _forget_room(self) -> None:
        # The largest push that is joined at once; 0 until `at_once` has decided it for this algorithm and columns.
        self._most_at_once = 0
        # The size of the newest push that was joined at once, and its memory, which the next one uses again. One value:
        # a failure can't part them.
        self._room: tuple[int, EncodedPush | None, tuple[Array, ...]] = (-1, None, ())

    def join_at_once(self, left: object, right: object, limit: int | None) -> pa.Table | None:
        """Join a push, left tuples first, by a handful of compiled calls; None, with nothing changed, if it can't be.

        Raises:
            Overflow: there are more than `limit` rows.
        """
        plan, tasks, counts = self.plan, self._tasks, self.counts
        if plan is None or tasks is None or self.adapting.wasted:
            return None
        counts.seconds.start()
        batch = other = None
        n_left = n_right = 0
        if left is not None:
            batch = plan.exact_batch(0, left)
            if batch is None:
                return None
            n_left = batch.num_rows
        if right is not None:
            other = plan.exact_batch(1, right)
            if other is None:
                return None
            n_right = other.num_rows
        n = n_left + n_right
        if n != self._room[0]:
            if not 0 < n <= self._most_at_once:
                return None
            self._room = (n, *plan.room_for(n))
        _, room, task = self._room
        block = plan.encode_batches(batch, other, room)
        plan.put(block, (batch, other), tasks.least)
        counts.seconds.lap("store")
        rows, self._later = self._pair_block(plan, block, task, None, limit)
        counts.tuples_left += n_left
        counts.tuples_right += n_right
        self._forget(None)
        return rows

    def save_push(self) -> None:
        """Record the state that `undo_push` returns to."""
        counts, stores = self.counts, self.stores
        self.pairing = False
        self._before_push = (
            stores[0].state(), stores[1].state(), counts.tuples_left, counts.tuples_right, counts.compared,
            counts.results, counts.expired,
        )  # fmt: skip

    def undo_push(self) -> None:
        """Return to the state of `save_push`."""
        counts, saved = self.counts, self._before_push
        self.stores[0].restore(saved[0])
        self.stores[1].restore(saved[1])
        counts.tuples_left, counts.tuples_right, counts.compared, counts.results, counts.expired = saved[2:]
        if self.pairing:
            self.build_anew()

    # -- calls in steps ------------------------------------------------------------------------------------

    def begin(self, ordered: Ordered, horizons: tuple[int, int] | None, tail: Tail | None = None) -> Work:
        """Prepare tuples to be joined with the windows and with each other.

        `horizons` are the times before which no more tuples of the left and the right side are accepted; by default
        the newest time of this call, as in event-time order. `tail` is what the end of the call decides.
        """
        if self.choice.provisional:
            self._reconsider(ordered.is_right.size)
        elif self.choice.adaptive:
            self._adapt(ordered)
        return Work(ordered, horizons, tail=None if self._kind is None else tail)

    def step(self, work: Work, limit: int | None, most: int | None = None) -> pa.Table:
        """Join the next chunk of at most `most` tuples.

        Raises:
            Overflow: the chunk has more than `limit` rows; none was gathered.
        """
        n = work.ordered.is_right.size
        if work.ready or (work.begin == n and work.tail is not None):
            return self._beside(work, limit)
        end = min(n, work.begin + min(self._chunk_size(), most or n))
        work.tried = end - work.begin
        with self._workers.sharing(work.tried if self._shares_no_small_chunks else None):
            return self._joined(work, end, limit)

    def _joined(self, work: Work, end: int, limit: int | None) -> pa.Table:
        ordered, at = work.ordered, list(work.at)
        n = ordered.is_right.size
        if self.plan is not None and work.tried == n <= self._most_compiled() and self.plan.is_due():
            compiled_rows = self._step_compiled(self.plan, work, limit)
            if compiled_rows is not None:
                return compiled_rows
        encoded = self._encoded(work)
        is_right = ordered.is_right[work.begin : end]
        rights = int(np.count_nonzero(is_right))
        counts = [is_right.size - rights, rights]
        if self._self_join:
            counts[1] = counts[0] = end - work.begin
        parts = []
        for side in (0, 1):
            cut = slice(at[side], at[side] + counts[side])
            ticks = ordered.ticks[side]
            parts.append((ordered.tables[side].slice(at[side], counts[side]), encoded[side], cut, ticks))
            at[side] += counts[side]
        rows = self._process_chunk(is_right, parts, limit)
        self.counts.seconds.start()
        self._forget(work.horizons if end == n else None)
        work.begin, work.at = end, at
        return rows

    def _most_compiled(self) -> int:
        """The largest push that takes the compiled steps, where the join has them."""
        return _LARGEST_COMPILED if self._tasks is None else _LARGEST_COMPILED_TASK

    def _encoded(self, work: Work) -> list[Encoded]:
        if work.encoded is None:
            tables = work.ordered.tables
            with self.counts.step("encode"):
                take = self._workers.memory.take
                work.encoded = self._workers.map(lambda side: self._encoders[side].encode(tables[side], take), (0, 1))
        return work.encoded

    def _step_compiled(self, plan: PushPlan, work: Work, limit: int | None) -> pa.Table | None:
        """Join all tuples of some work by kernels; None, with nothing changed, if they need the general way."""
        ordered, stores, tasks, counts = work.ordered, self.stores, self._tasks, self.counts
        if self._descent[0] > stores[0].base or self._descent[1] > stores[1].base:
            return None
        counts.seconds.start()
        block = plan.encode(ordered.tables)
        if block is None:
            return None
        counts.seconds.lap("encode")
        least, shared = (_NO_POSITIONS, False) if tasks is None else (tasks.least, tasks.shared)
        if not plan.store(block, ordered, least, shared):
            return None
        counts.seconds.lap("store")
        task = block.task(plan.index_row, ordered.left_first and not self._self_join)
        rows, probes = self._pair_block(plan, block, task, ordered, limit)
        self._later = probes >> 1 if self._self_join else probes.copy()
        self._forget(work.horizons)
        work.begin = work.tried
        work.at = [block.counts[0], block.counts[1]]
        return rows

    def _pair_block(
        self, plan: PushPlan, block: EncodedPush, task: tuple[Array, ...], ordered: Ordered | None, limit: int | None
    ) -> tuple[pa.Table, Array]:
        """The rows of stored tuples, and the place of each row's later one; without `ordered`, pairs need no test."""
        counts, tasks = self.counts, self._tasks
        self.pairing = True
        if ordered is not None:
            pairs, compared = self._pair_ordered(plan, block, task, ordered, limit)
            probes, seqs = pairs.probe, pairs.seq
        elif tasks is not None:
            probes, seqs = tasks.pair(task)
            compared = probes.size
            if limit is not None and compared > limit:
                raise Overflow
        counts.seconds.lap("pair")
        rows = plan.gather(block, probes, seqs)
        counts.compared += compared
        counts.results += probes.size
        counts.seconds.lap("gather")
        return rows, probes

    def _pair_ordered(
        self, plan: PushPlan, block: EncodedPush, task: tuple[Array, ...], ordered: Ordered, limit: int | None
    ) -> tuple[Pairs, int]:
        if self._tasks is None:
            return self._pair(plan.chunk(block, ordered.is_right), block.reach, limit)
        refine: Refinement | Tally = Tally(limit)
        if self.bound.residual is not None or self._open_terms or block.reach is not None:
            chunk = plan.chunk(block, ordered.is_right)
            refine = Refinement(self.bound, self.stores, self._payload, chunk, self._open_terms, block.reach, limit)
        pairs = self._tasks.take(block.words[UPTO], task, refine, 0, block.n)
        return pairs, sum(refine.compared)

    def _beside(self, work: Work, limit: int | None) -> pa.Table:
        """A step without tuples: rows that are ready, or those that the end of the call decides."""
        work.tried = 0
        if work.ready:
            rows, work.ready = work.ready[0], work.ready[1:]
            self._later = np.zeros(rows.num_rows, np.int64)
        elif self._kind is not None and work.tail is not None:
            rows = self._gathered(self._kind.end(work.tail), 0, limit)
            work.tail = None
            self.counts.seconds.start()
            self._forget(work.horizons)
        if limit is not None and rows.num_rows > limit:
            raise Overflow
        return rows

    def retype(self, bound: BoundSpec) -> None:
        """Switch to a spec bound to schemas that give types to columns that were all NULL so far."""
        for store, schema in zip(self.stores, (bound.left_schema, _right_payload(bound)), strict=True):
            store.retype(schema)
        self.bound = bound
        self.plan = self._planned()
        self._forget_room()
        self.no_rows = bound.schema.empty_table()

    def _planned(self) -> PushPlan | None:
        """The plan of pushes; kinds of join other than inner do more in a step than kernels know of, and have none."""
        return None if self._kind is not None else PushPlan.of(self.bound, self.stores, self._general_pushes)

    def _reconsider(self, arriving: int) -> None:
        """Switch to another algorithm once scanning costs more; a failure here changes nothing."""
        live = max(store.count - store.base for store in self.stores)
        comparisons = self.algorithm.counters()["compared"]
        choice = auto.successor(self.bound, arriving, live, comparisons, self._scans, self.workers)
        self._scans += 1
        if choice is not None:
            self._move(choice)
            self.counts.compared = comparisons

    def _adapt(self, ordered: Ordered) -> None:
        """Switch between the algorithms that `auto` compares once it pays; a failure changes nothing."""
        arriving = ordered.is_right.size
        if not self.adapting.is_due(arriving):
            return
        counts, stores = self.counts, self.stores
        stored = sum(store.count for store in stores[: 1 if self._self_join else 2])
        counted = Counted(stored, counts.compared, counts.results, counts.seconds.get("pair", 0.0))
        held = sum(store.count - store.base for store in stores)
        choice = self.adapting.look(
            self.choice, arriving, counted, held, lambda: [self._some_intervals(side, ordered) for side in (0, 1)]
        )
        if choice is not None:
            self._move(choice)

    def _some_intervals(self, side: int, ordered: Ordered) -> tuple[Array, Array]:
        """Begins and ends of some intervals of one side: stored ones, or arriving ones if these are more."""
        store, table, plan = self.stores[side], ordered.tables[side], self.bound.intervals
        if plan is None:
            raise AssertionError("no interval to look up")
        words = store.words
        upper, lower = words[plan.upper], words[plan.lower]
        if table.num_rows > upper.size:
            encoded = self._encoders[side].encode(
                table.slice(0, table.num_rows).take(pa.array(_spread(table.num_rows)))
            )
            begin, end = ends(encoded.terms, plan)
            return (begin, end) if encoded.valid is None else (begin[encoded.valid], end[encoded.valid])
        some = _spread(upper.size)
        return np.minimum(upper[some], lower[some]), np.maximum(upper[some], lower[some])

    def _move(self, choice: AlgorithmChoice) -> None:
        """Let another algorithm take over."""
        algorithm = KINDS[choice.name].build(self.bound, choice, self._workers)
        if not self.bound.index:
            self._store_again(algorithm)
        elif isinstance(algorithm, Fillable):
            for side in (0, 1):
                words, seqs = self._live_words(side)
                if seqs.size:
                    algorithm.fill(side, words, seqs)
        else:
            raise AssertionError(f"{choice.name} can't take over a running join")
        algorithm.forget(self.stores[0].base, self.stores[1].base)
        self.algorithm.close()
        self._use(algorithm, choice)

    def _use(self, algorithm: Algorithm, choice: AlgorithmChoice) -> None:
        open_terms = tuple(t for t in range(len(self.bound.terms)) if t not in algorithm.decides)
        self._shares_no_small_chunks = capabilities_of(algorithm).shares_no_small_chunks
        self._forget_room()
        # One assignment: an interrupt can't part them.
        self.algorithm, self.choice, self._tasks, self._open_terms = (
            algorithm, choice, task_algorithm(algorithm), open_terms,
        )  # fmt: skip

    def _live_words(self, side: int) -> tuple[Array, Array]:
        """The index words and positions of one side's live, valid tuples, encoded again from their rows."""
        store = self.stores[side]
        seqs = np.arange(store.base, store.count)
        if not seqs.size:
            return seqs, seqs
        encoded = self._encoded_again(side, store.base, seqs.size)
        if encoded.index is None:
            raise AssertionError("an index without index words")
        if encoded.valid is None:
            return encoded.index.word, seqs
        return encoded.index.word[encoded.valid], seqs[encoded.valid]

    def _chunk_size(self) -> int:
        """About as many tuples as the windows hold: larger chunks would compare tuples that no window joins."""
        live = 0
        for window, store in zip(self.bound.windows, self.stores, strict=True):
            live += window.size if window.kind == "count" else store.count - store.base
        largest = _LARGEST_SHARED_CHUNK if self._workers.n > _MANY_WORKERS else _LARGEST_CHUNK
        return max(_LEAST_CHUNK if self._tasks is None else _LEAST_CHUNK_OF_TASKS, min(largest, live))

    def _process_chunk(self, is_right: Array, parts: list[Any], limit: int | None) -> pa.Table:
        with self.counts.step("store"):
            stored = [self._store(side, *parts[side]) for side in (0, 1)]
            chunk, reach = self._chunk(is_right, stored)
        if self._kind is not None:
            tables, ticks = (parts[0][0], parts[1][0]), (stored[0][2], stored[1][2])
            return self._kind_rows(self._kind, StoredChunk(chunk, tables, ticks, self._self_join), reach, limit)
        with self.counts.step("pair"):
            pairs, comparisons = self._pair(chunk, reach, limit)
        self.counts.compared += comparisons
        self.counts.results += pairs.probe.size
        with self.counts.step("gather"):
            return self._materialize(chunk, pairs)

    def _kind_rows(self, kind: KindLayer, chunk: StoredChunk, reach: TimeReach | None, limit: int | None) -> pa.Table:
        """The rows of a kind of join other than inner."""
        with self.counts.step("pair"):
            kind.begin(chunk)
            pairs, comparisons = self._pair(
                chunk.chunk, reach, limit if kind.gives_pairs else None, lambda p, s: kind.reduce(chunk, p, s)
            )
            self.counts.compared += comparisons
            left, right = (self._workers.memory.take(pairs.probe.size) for _ in (0, 1))
            sides_of_pairs(pairs.probe, pairs.seq, chunk.chunk.is_right, chunk.chunk.own_seq, left, right)
            probes = pairs.probe
            if self._self_join:
                order = np.lexsort((chunk.chunk.is_right[probes], pairs.seq, probes >> 1))
                left, right, probes = left[order], right[order], probes[order]
            rows = kind.rows(chunk, probes, left, right)
        return self._gathered(rows, chunk.n - 1, limit)

    def _gathered(self, rows: KindRows, last: int, limit: int | None) -> pa.Table:
        if limit is not None and rows.n > limit:
            raise Overflow
        self.counts.results += rows.n
        self._later = rows.places(last)
        with self.counts.step("gather"):
            if not rows.are_pairs:
                return gather_kind(self.bound, self._payload, rows, self._workers)
            table = self._rows_at(rows.left, rows.right)
            if rows.few is None:
                return table
            few = gather_kind(self.bound, self._payload, rows.few.rows, self._workers)
            return interleaved(table, few, rows.few.before)

    def _pair(
        self, chunk: Chunk, reach: TimeReach | None, limit: int | None, reduce: Keep | None = None
    ) -> tuple[Pairs, int]:
        refine = Refinement(self.bound, self.stores, self._payload, chunk, self._open_terms, reach, limit, reduce)
        self.pairing = True
        pairs = self.algorithm.process(chunk, refine)
        if limit is not None and pairs.probe.size > limit:
            raise Overflow
        return pairs, sum(refine.compared)

    def _store(
        self, side: int, table: pa.Table, encoded: Encoded, cut: slice, ticks: Array | None
    ) -> tuple[Encoded, int, Array | None]:
        """Store one side's tuples of a chunk; returns their words, the first one's position and their ticks."""
        store, piece = self.stores[side], encoded.part(cut)
        first = store.count
        side_ticks = None if ticks is None else ticks[cut]
        self._note_descent(side, side_ticks)
        payload = table if len(store.schema) == table.num_columns else table.select(store.schema.names)
        store.append(payload, [term.word for term in piece.terms], side_ticks, piece.n, self._workers)
        return piece, first, side_ticks

    def _chunk(self, is_right: Array, parts: list[tuple[Encoded, int, Array | None]]) -> tuple[Chunk, TimeReach | None]:
        (left, left_first, left_ticks), (right, right_first, right_ticks) = parts
        if self._self_join:
            # Each tuple occurs twice, first as left and then as right, and matches only earlier ones.
            n = 2 * left.n
            is_right = np.tile(np.array([False, True]), left.n)
            own_seq = np.repeat(np.arange(left_first, left_first + left.n), 2)
            upto = own_seq
            # A left tuple's window is of right tuples, and the other way round.
            min_seq = upto - np.tile(np.array((self._counted_windows or (0, 0))[::-1]), left.n)
            left_at, right_at = np.arange(0, n, 2), np.arange(1, n, 2)
        else:
            n = left.n + right.n
            own_seq, upto, min_seq, left_at, right_at = _placed(
                is_right, (left.n, right.n), (left_first, right_first), self._counted_windows or (0, 0), self._workers
            )
        reach: TimeReach | None = None
        if self._counted_windows is None:
            for side, at, ticks in ((0, left_at, left_ticks), (1, right_at, right_ticks)):
                reach = self._look_back(1 - side, at, ticks, upto, min_seq, reach)
        return (
            Chunk(
                is_right, own_seq, upto, min_seq,
                SidePart(left, left_at, left_first), SidePart(right, right_at, right_first),
                ends=None if reach is None else reach.ends,
            ),
            reach,
        )  # fmt: skip

    def _look_back(
        self, other: int, at: Array, ticks: Array | None, upto: Array, min_seq: Array, reach: TimeReach | None
    ) -> TimeReach | None:
        """Fill `min_seq` for the tuples at some places, which look up the other side, and what else they reach."""
        window, store = self.bound.windows[other], self.stores[other]
        if window.kind == "count":
            min_seq[at] = upto[at] - window.size + int(self._self_join)
            return reach
        if ticks is None or store.ticks is None:
            raise AssertionError("a time window without ticks")
        if self._descent[other] > store.base:
            min_seq[at] = store.base
            reach = reach or TimeReach(upto)
            reach.least[at], reach.most[at] = minus(ticks, window.size), plus(ticks, window.size)
            return reach
        out = np.empty(at.size, np.int64)
        first_at_least(store.ticks, minus(ticks, window.size), store.base, out)
        min_seq[at] = out
        # What came before a tuple in its own stream, whose times ascend, or in the order of time, is no newer.
        if self._self_join or self.bound.spec.order == "event_time":
            return reach
        ends = too_new(store, ticks, window.size, upto, at)
        if ends is not None:
            reach = reach or TimeReach(upto)
            reach.limit(at, ends, plus(ticks, window.size))
        return reach

    def _note_descent(self, side: int, ticks: Array | None) -> None:
        if ticks is None or not ticks.size:
            return
        store = self.stores[side]
        previous = store.ticks[-1:] if store.ticks is not None else ticks[:0]
        joined = np.concatenate([previous, ticks])
        falls = np.flatnonzero(joined[1:] < joined[:-1])
        if falls.size:
            self._descent[side] = store.count + int(falls[-1]) + 1 - previous.size

    def _materialize(self, chunk: Chunk, pairs: Pairs) -> pa.Table:
        """Gather the rows of the pairs, once, column by column."""
        self._later = pairs.probe
        if self._self_join:
            left, right = positions(chunk, pairs.probe, pairs.seq)
            order = np.lexsort((chunk.is_right[pairs.probe], pairs.seq, pairs.probe >> 1))
            self._later = pairs.probe[order] >> 1
            return self._rows_at(left[order], right[order])
        n = pairs.probe.size
        left, right = (self._workers.memory.take(n) for _ in (0, 1))
        _split_pairs(pairs, chunk, left, right, self._workers)
        return self._rows_at(left, right)

    def _rows_at(self, left: Array, right: Array) -> pa.Table:
        """The result rows of pairs of positions."""
        gatherings, time = {}, self.bound.time
        for side, seqs in (("left", left), ("right", right)):
            names = [c.source for c in self.bound.columns if c.side == side]
            own_time = [] if time is None else [time.left if side == "left" else time.right]
            gatherings[side] = self._payload[side == "right"].gathering(
                list(dict.fromkeys(names + own_time)), seqs, self._workers
            )
        gather_values(list(gatherings.values()), _row_ranges(left.size, self._workers), self._workers)
        rows = {side: gathering.columns(self._workers) for side, gathering in gatherings.items()}
        fields = zip(self.bound.columns, self.bound.schema, strict=False)
        # A key that appears once may have the common type of both sides.
        arrays = [as_type(rows[c.side][c.source], field.type) for c, field in fields]
        if time is not None:
            arrays.append(later_time([rows["left"][time.left], rows["right"][time.right]], time.type))
        return pa.Table.from_arrays(arrays, schema=self.bound.schema)

    def earliest(self, tick: int) -> int:
        """The earliest time that a later row can have, in event-time order, if no tuple before `tick` follows."""
        return tick if self._kind is None else self._kind.earliest(tick)

    def _forget(self, horizons: tuple[int, int] | None) -> None:
        counts, stores, windows, kind = self.counts, self.stores, self._counted_windows, self._kind
        if windows is not None:
            left, right = stores[0].count - windows[0], stores[1].count - windows[1]
        else:
            left, right = self._forget_bound(0, horizons), self._forget_bound(1, horizons)
        if kind is not None:
            left, right = kind.needed_from(0, left), kind.needed_from(1, right)
        if self._self_join:
            # Both roles read from one store, so the longer window decides.
            left = right = min(left, right)
        dropped, others = stores[0].forget(left), stores[1].forget(right)
        counts.expired += dropped if self._self_join else dropped + others
        self.algorithm.forget(left, right)
        if kind is not None:
            kind.forget(left, right)
        counts.seconds.lap("expire")

    def _forget_bound(self, side: int, horizons: tuple[int, int] | None) -> int:
        window, store = self.bound.windows[side], self.stores[side]
        if window.kind == "count":
            return store.count - window.size + int(self._self_join)
        if store.ticks is None:
            raise AssertionError("a time window without ticks")
        ticks = store.ticks
        if horizons is not None:
            horizon = horizons[1 - side]
        elif self.bound.spec.order == "event_time":
            newest = [s.ticks[-1] for s in self.stores if s.ticks is not None and len(s.ticks)]
            horizon = int(max(newest, default=NEVER))
        else:
            return store.base
        return store.base + int(leading_below(ticks, max(NEVER, horizon - window.size)))

    def saved(self) -> Restore:
        """Return a function that restores the stored tuples."""
        bound, choice, before, compiled, no_rows = self.bound, self.choice, self.algorithm, self.plan, self.no_rows
        descent = list(self._descent)
        stores = [store.saved() for store in self.stores]
        stores += [] if self._kind is None else [self._kind.saved()]
        algorithm = self.algorithm.saved()
        self.pairing = False

        def restore() -> None:
            self.bound, self.plan, self.no_rows = bound, compiled, no_rows
            self._use(before, choice)
            for part in stores:
                part()
            self._descent = list(descent)
            if algorithm is not None:
                algorithm()
            elif self.pairing:
                self.build_anew()

        return restore

    def build_anew(self) -> None:
        """Replace the algorithm by a new one, filled from the stores."""
        old = self.algorithm
        # Its threads read the stores and may still be running after an interrupt.
        old.close()
        algorithm = KINDS[self.choice.name].build(self.bound, self.choice, self._workers)
        if isinstance(algorithm, Elastic) and isinstance(old, Elastic):
            algorithm.set_workers(old.workers)
        self._store_again(algorithm)
        algorithm.forget(self.stores[0].base, self.stores[1].base)
        before, now = old.counters(), algorithm.counters()
        self._counted = {name: self._counted.get(name, 0) + before[name] - now[name] for name in now}
        self._use(algorithm, self.choice)
        self.pairing = False

    def _store_again(self, algorithm: Algorithm) -> None:
        """Store the live tuples in an algorithm, without joining them."""
        for chunk in _stored_chunks(self.stores, self._encoded_again, _LARGEST_CHUNK):
            algorithm.process(chunk, Refinement(self.bound, self.stores, self._payload, chunk, (), None))

    def _encoded_again(self, side: int, begin: int, n: int) -> Encoded:
        """The words of one side's tuples from position `begin` on, encoded from their rows."""
        names = self._encoders[side].columns
        if not names:
            return Encoded(n, None, (), None)
        rows = self._payload[side].gather(names, np.arange(begin, begin + n), self._workers)
        return self._encoders[side].encode(pa.table(rows))

    def counters(self) -> dict[str, int]:
        """The algorithm's counters, including failed calls."""
        return {name: n + self._counted.get(name, 0) for name, n in self.algorithm.counters().items()}

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes held by the stored tuples, and by the algorithm."""
        return sum(store.nbytes for store in self.stores), self.algorithm.nbytes


def _spread(n: int) -> Array:
    """The places of some of `n` tuples, spread evenly."""
    return np.unique(np.linspace(0, n - 1, min(n, _SAMPLED)).astype(np.int64)) if n else np.empty(0, np.int64)


def _right_payload(bound: BoundSpec) -> pa.Schema:
    """The columns of the right side that are stored: for rows of the left side alone, those that are compared."""
    if bound.spec.self_join:
        return pa.schema([])
    if not bound.spec.left_only:
        return bound.right_schema
    names = matched_columns(bound, 1)
    if bound.residual is not None:
        names |= {column.name for column in bound.residual.columns if column.qualifier == "r"}
    return pa.schema([field for field in bound.right_schema if field.name in names])


def _row_ranges(n: int, workers: Workers) -> list[tuple[int, int]]:
    """Ranges of `n` rows, one for each worker."""
    return cuts(n, min(workers.n, n // _LEAST_PART))


def _placed(
    is_right: Array, counts: tuple[int, int], first: tuple[int, int], windows: tuple[int, int], workers: Workers
) -> tuple[Array, Array, Array, Array, Array]:
    """The positions of tuples in gate order, what came before them on the other side, and each side's places.

    The third array has the least positions that they match in count windows of these sizes.
    """
    n, memory = is_right.size, workers.memory
    own_seq, upto, min_seq = memory.take(n), memory.take(n), memory.take(n)
    left_at, right_at = memory.take(counts[0]), memory.take(counts[1])
    edges = np.array([begin for begin, _ in _row_ranges(n, workers)] + [n])
    rights = np.append(0, np.cumsum([np.count_nonzero(is_right[begin:end]) for begin, end in pairwise(edges)]))
    lefts = edges - rights
    cut, of_left, of_right = ((part[:-1], part[1:]) for part in (edges, lefts, rights))
    workers.call(
        set_positions,
        KernelCalls(
            edges.size - 1, Cut(is_right, *cut), Each(edges[:-1]), Each(first[0] + lefts[:-1]),
            Each(first[1] + rights[:-1]), *windows, Cut(own_seq, *cut), Cut(upto, *cut), Cut(min_seq, *cut),
            Cut(left_at, *of_left), Cut(right_at, *of_right),
        ),
    )  # fmt: skip
    return own_seq, upto, min_seq, left_at, right_at


def _split_pairs(pairs: Pairs, chunk: Chunk, left: Array, right: Array, workers: Workers) -> None:
    """Write the left and the right position of each pair."""
    begins, ends = np.array(_row_ranges(pairs.probe.size, workers)).T
    probe, seq, to_left, to_right = (Cut(each, begins, ends) for each in (pairs.probe, pairs.seq, left, right))
    calls = KernelCalls(len(begins), probe, seq, chunk.is_right, chunk.own_seq, to_left, to_right)
    workers.call(sides_of_pairs, calls)


def _stored_chunks(stores: tuple[SideStore, SideStore], encode: Encode, largest: int) -> Iterator[Chunk]:
    """The live tuples of both sides in chunks of at most `largest`, only to be stored; left ones first."""
    for side, store in enumerate(stores):
        for begin in range(store.base, store.count, largest):
            yield _stored_chunk(stores, side, begin, min(largest, store.count - begin), encode)


def _stored_chunk(stores: tuple[SideStore, SideStore], side: int, begin: int, n: int, encode: Encode) -> Chunk:
    others = stores[1 - side]
    # Tuples of the other side that came before: all live ones, or none.
    before = others.count if side == 1 else others.base
    own = SidePart(encode(side, begin, n), np.arange(n), begin)
    other = SidePart(encode(1 - side, others.base, 0), np.empty(0, np.int64), before)
    left, right = (own, other) if side == 0 else (other, own)
    seqs = np.arange(begin, begin + n)
    return Chunk(
        np.full(n, side == 1), seqs, np.full(n, before), np.full(n, others.base), left, right, stored_only=True
    )
