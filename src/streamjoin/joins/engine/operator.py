"""The output half of the driver: turns tuples in gate order into result rows.

It owns positions, windows, expiry and late materialization; the algorithm only pairs. Results and state do not
depend on how the tuples were cut into calls: each call is cut into chunks that suit the windows, and into smaller
ones if a chunk would have too many rows.

A failed call is undone: `saved` is cheap and returns a function that restores the stored tuples. An algorithm that
can't be restored is rebuilt from the stores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins import auto
from streamjoin.joins.base import Algorithm, Chunk, Elastic, Fillable, Keep, Overflow, Pairs, SidePart
from streamjoin.joins.batch.sweep import Sweep
from streamjoin.joins.engine.adapting import Adapting, Counted
from streamjoin.joins.engine.chunks_again import chunks_again
from streamjoin.joins.engine.compiled_step import CompiledStep
from streamjoin.joins.engine.later import later
from streamjoin.joins.engine.metrics import Counts
from streamjoin.joins.engine.ordered import Ordered, Work
from streamjoin.joins.engine.refine import Refinement, Tally, positions
from streamjoin.joins.engine.shared_places import placed, row_ranges, split_pairs
from streamjoin.joins.indexed import Indexed
from streamjoin.joins.kinds.base import KindLayer, KindRows, StoredChunk, Tail
from streamjoin.joins.kinds.gathering import gather_kind, interleaved
from streamjoin.joins.kinds.layers import kind_layer
from streamjoin.joins.parallel.pim_parallel import PimParallel
from streamjoin.joins.registry import KINDS, AlgorithmChoice
from streamjoin.kernels.gather import first_at_least, leading_below, sides_of_pairs
from streamjoin.kernels.positions import UPTO
from streamjoin.model.binding import BoundSpec, matched_columns
from streamjoin.windows.buffer import Restore
from streamjoin.windows.clock import NEVER, minus
from streamjoin.windows.encoding import Encoded, SideEncoder
from streamjoin.windows.store import SideStore, gather_values
from streamjoin.windows.workers import Workers

_STEPS = ("encode", "store", "pair", "gather")
_NO_POSITIONS = (0, 0)
# An index looks at few tuples beyond the windows, whatever the size of a chunk.
_LEAST_CHUNK, _LEAST_CHUNK_INDEXED = 1 << 12, 1 << 14
_LARGEST_CHUNK = 1 << 18
# A step costs each worker some time however little it has to do.
_LARGEST_SHARED_CHUNK = 1 << 19
_MANY_WORKERS = 4
# An index takes tuples one by one in either way. Other algorithms take a chunk at once, and the general way then does
# the steps before and after column by column, which is faster for long columns.
_LARGEST_COMPILED = 1 << 14
_LARGEST_COMPILED_INDEXED = 1 << 17
# What these do with a few tuples is less than handing it to other threads; a scan is not.
_CHEAP = (Sweep, Indexed, PimParallel)


class Operator:
    """One running join over ordered input."""

    def __init__(self, bound: BoundSpec, choice: AlgorithmChoice, workers: Workers, counts: Counts) -> None:
        self.bound = bound
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
        self.choice = choice
        self.algorithm = KINDS[choice.name].build(bound, choice, workers)
        self._open_terms = tuple(t for t in range(len(bound.terms)) if t not in self.algorithm.decides)
        # The counters of algorithms that were replaced.
        self._counted: dict[str, int] = {}
        self.pairing = False
        """Whether the algorithm has begun to change since the state was saved."""
        # The pushes that were scanned until another algorithm takes over.
        self._scans = 0
        self.adapting = Adapting(bound, self.workers)
        # The position from which a side's ticks are sorted.
        self._descent = [0, 0]
        self._kind = kind_layer(bound, self.stores)
        self._compiled = self._compiled_step()
        self.no_rows = bound.schema.empty_table()
        self._later: Array | Callable[[], Array] = np.empty(0, np.int64)

    @property
    def later(self) -> Array:
        """For each row of the newest step, the place in it of the later tuple, or of the one that decided the row."""
        return self._later() if callable(self._later) else self._later

    @property
    def compiled(self) -> CompiledStep | None:
        """The compiled steps of small pushes, where the join has them."""
        return self._compiled

    @property
    def workers(self) -> int:
        """The number of workers of the join."""
        return self._workers.n

    @property
    def tests_pairs(self) -> bool:
        """Whether pairs are tested after the algorithm has found them."""
        return self.bound.residual is not None or bool(self._open_terms) or self._kind is not None

    def begin(self, ordered: Ordered, horizons: tuple[int, int] | None, tail: Tail | None = None) -> Work:
        """Prepare tuples to be joined with the windows and with each other.

        `horizons` are the times before which no more tuples of the left and the right side are accepted; by default
        the newest time of this call, as in event-time order. `tail` is what the end of the call decides.
        """
        if self.choice.provisional:
            self._reconsider(ordered.is_right.size)
        elif self.choice.adaptive:
            self._adapt(ordered.is_right.size)
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
        with self._workers.sharing(work.tried if isinstance(self.algorithm, _CHEAP) else None):
            return self._joined(work, end, limit)

    def _joined(self, work: Work, end: int, limit: int | None) -> pa.Table:
        ordered, at = work.ordered, list(work.at)
        n = ordered.is_right.size
        if self._compiled is not None and work.tried == n <= self._most_compiled() and self._compiled.is_due():
            compiled_rows = self._step_compiled(self._compiled, work, limit)
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
        self._forget(work.horizons if end == n else None)
        work.begin, work.at = end, at
        return rows

    def _most_compiled(self) -> int:
        """The largest push that takes the compiled steps, where the join has them."""
        return _LARGEST_COMPILED_INDEXED if isinstance(self.algorithm, Indexed) else _LARGEST_COMPILED

    def _encoded(self, work: Work) -> list[Encoded]:
        if work.encoded is None:
            tables = work.ordered.tables
            with self.counts.step("encode"):
                take = self._workers.memory.take
                work.encoded = self._workers.map(lambda side: self._encoders[side].encode(tables[side], take), (0, 1))
        return work.encoded

    def _step_compiled(self, compiled: CompiledStep, work: Work, limit: int | None) -> pa.Table | None:
        """Join all tuples of some work by kernels; None, with nothing changed, if they need the general way."""
        ordered, stores, algorithm, counts = work.ordered, self.stores, self.algorithm, self.counts
        indexed = algorithm if isinstance(algorithm, Indexed) else None
        if self._descent[0] > stores[0].base or self._descent[1] > stores[1].base:
            return None
        clock = [counts.now()]
        block = compiled.encode(ordered.tables)
        if block is None:
            return None
        clock.append(counts.now())
        least, shared = (_NO_POSITIONS, False) if indexed is None else (indexed.least, indexed.shared)
        if not compiled.store(block, ordered, least, shared):
            return None
        clock.append(counts.now())
        self.pairing = True
        if indexed is None:
            pairs, comparisons = self._pair(compiled.chunk(block, ordered.is_right), None, limit)
        else:
            columns = block.task(compiled.index_row, ordered.left_first and not self._self_join)
            refine: Refinement | Tally = Tally(limit)
            if self.bound.residual is not None or self._open_terms:
                chunk = compiled.chunk(block, ordered.is_right)
                refine = Refinement(self.bound, stores, self._payload, chunk, self._open_terms, None, limit)
            pairs = indexed.take(block.words[UPTO], columns, refine, 0, block.n)
            comparisons = sum(refine.compared)
        clock.append(counts.now())
        rows = compiled.gather(block, pairs.probe, pairs.seq)
        self._later = pairs.probe >> 1 if self._self_join else pairs.probe.copy()
        clock.append(counts.now())
        counts.add_steps(_STEPS, clock)
        counts.compared += comparisons
        counts.results += pairs.probe.size
        self._forget(work.horizons)
        work.begin = work.tried
        work.at = [block.counts[0], block.counts[1]]
        return rows

    def _beside(self, work: Work, limit: int | None) -> pa.Table:
        """A step without tuples: rows that are ready, or those that the end of the call decides."""
        work.tried = 0
        if work.ready:
            rows, work.ready = work.ready[0], work.ready[1:]
            self._later = np.zeros(rows.num_rows, np.int64)
        elif self._kind is not None and work.tail is not None:
            rows = self._gathered(self._kind.end(work.tail), 0, limit)
            work.tail = None
            self._forget(work.horizons)
        if limit is not None and rows.num_rows > limit:
            raise Overflow
        return rows

    def retype(self, bound: BoundSpec) -> None:
        """Switch to a spec bound to schemas that give types to columns that were all NULL so far."""
        for store, schema in zip(self.stores, (bound.left_schema, _right_payload(bound)), strict=True):
            store.retype(schema)
        self.bound = bound
        self._compiled = self._compiled_step()
        self.no_rows = bound.schema.empty_table()

    def _compiled_step(self) -> CompiledStep | None:
        """The compiled steps of small pushes; kinds other than inner have none."""
        return None if self._kind is not None else CompiledStep.of(self.bound, self.stores)

    def _reconsider(self, arriving: int) -> None:
        """Switch to another algorithm once scanning costs more; a failure here changes nothing."""
        live = max(store.count - store.base for store in self.stores)
        comparisons = self.algorithm.counters()["compared"]
        choice = auto.successor(self.bound, arriving, live, comparisons, self._scans, self.workers)
        self._scans += 1
        if choice is not None:
            self._move(choice)
            self.counts.compared = comparisons

    def _adapt(self, arriving: int) -> None:
        """Switch between the sweep, an index and the parallel join once it pays; a failure changes nothing."""
        if not self.adapting.is_due(arriving):
            return
        counts, stores = self.counts, self.stores
        stored = sum(store.count for store in stores[: 1 if self._self_join else 2])
        counted = Counted(stored, counts.compared, counts.results, counts.seconds.get("pair", 0.0))
        held = sum(store.count - store.base for store in stores)
        choice = self.adapting.look(self.choice, arriving, counted, held)
        if choice is not None:
            self._move(choice)

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
        self.algorithm, self.choice = algorithm, choice
        self._open_terms = tuple(t for t in range(len(self.bound.terms)) if t not in algorithm.decides)

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
        return max(_LEAST_CHUNK_INDEXED if isinstance(self.algorithm, Indexed) else _LEAST_CHUNK, min(largest, live))

    def _process_chunk(self, is_right: Array, parts: list[Any], limit: int | None) -> pa.Table:
        with self.counts.step("store"):
            stored = [self._store(side, *parts[side]) for side in (0, 1)]
            chunk, least = self._chunk(is_right, stored)
        if self._kind is not None:
            tables, ticks = (parts[0][0], parts[1][0]), (stored[0][2], stored[1][2])
            return self._kind_rows(self._kind, StoredChunk(chunk, tables, ticks, self._self_join), least, limit)
        with self.counts.step("pair"):
            pairs, comparisons = self._pair(chunk, least, limit)
        self.counts.compared += comparisons
        self.counts.results += pairs.probe.size
        with self.counts.step("gather"):
            return self._materialize(chunk, pairs)

    def _kind_rows(self, kind: KindLayer, chunk: StoredChunk, least: Array | None, limit: int | None) -> pa.Table:
        """The rows of a kind of join other than inner."""
        with self.counts.step("pair"):
            kind.begin(chunk)
            pairs, comparisons = self._pair(
                chunk.chunk, least, limit if kind.gives_pairs else None, lambda p, s: kind.reduce(chunk, p, s)
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
        self, chunk: Chunk, least: Array | None, limit: int | None, reduce: Keep | None = None
    ) -> tuple[Pairs, int]:
        refine = Refinement(self.bound, self.stores, self._payload, chunk, self._open_terms, least, limit, reduce)
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

    def _chunk(self, is_right: Array, parts: list[tuple[Encoded, int, Array | None]]) -> tuple[Chunk, Array | None]:
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
            own_seq, upto, min_seq, left_at, right_at = placed(
                is_right, (left.n, right.n), (left_first, right_first), self._counted_windows or (0, 0), self._workers
            )
        least: Array | None = None
        if self._counted_windows is None:
            for side, at, ticks in ((0, left_at, left_ticks), (1, right_at, right_ticks)):
                exact, bounds = self._live_bounds(1 - side, upto[at], ticks)
                min_seq[at] = bounds
                if not exact and least is None:
                    least = np.full(n, NEVER, np.int64)
                if not exact and least is not None and ticks is not None:
                    least[at] = minus(ticks, self.bound.windows[1 - side].size)
        return (
            Chunk(
                is_right, own_seq, upto, min_seq,
                SidePart(left, left_at, left_first), SidePart(right, right_at, right_first),
            ),
            least,
        )  # fmt: skip

    def _live_bounds(self, other: int, upto: Array, ticks: Array | None) -> tuple[bool, Array]:
        """The smallest live position of the other side for each tuple, and whether that alone decides."""
        window, store = self.bound.windows[other], self.stores[other]
        if window.kind == "count":
            return True, upto - window.size + int(self._self_join)
        if ticks is None or store.ticks is None:
            raise AssertionError("a time window without ticks")
        if self._descent[other] > store.base:
            return False, np.full(upto.size, store.base, np.int64)
        out = np.empty(upto.size, np.int64)
        first_at_least(store.ticks, minus(ticks, window.size), store.base, out)
        return True, out

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
        split_pairs(pairs, chunk, left, right, self._workers)
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
        gather_values(list(gatherings.values()), row_ranges(left.size, self._workers), self._workers)
        rows = {side: gathering.columns(self._workers) for side, gathering in gatherings.items()}
        arrays = [rows[c.side][c.source] for c in self.bound.columns]
        if time is not None:
            arrays.append(later([rows["left"][time.left], rows["right"][time.right]], time.type))
        return pa.Table.from_arrays(arrays, schema=self.bound.schema)

    def earliest(self, tick: int) -> int:
        """The earliest time that a later row can have, in event-time order, if no tuple before `tick` follows."""
        return tick if self._kind is None else self._kind.earliest(tick)

    def _forget(self, horizons: tuple[int, int] | None) -> None:
        with self.counts.step("expire"):
            if self._counted_windows is not None:
                left, right = (
                    self.stores[0].count - self._counted_windows[0],
                    self.stores[1].count - self._counted_windows[1],
                )
            else:
                left, right = self._forget_bound(0, horizons), self._forget_bound(1, horizons)
            if self._kind is not None:
                left, right = self._kind.needed_from(0, left), self._kind.needed_from(1, right)
            if self._self_join:
                # Both roles read from one store, so the longer window decides.
                left = right = min(left, right)
            dropped, others = self.stores[0].forget(left), self.stores[1].forget(right)
            self.counts.expired += dropped if self._self_join else dropped + others
            self.algorithm.forget(left, right)
            if self._kind is not None:
                self._kind.forget(left, right)

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
        state = self.bound, self.choice, self.algorithm, self._open_terms, self._compiled, self.no_rows
        descent = list(self._descent)
        stores = [store.saved() for store in self.stores]
        stores += [] if self._kind is None else [self._kind.saved()]
        algorithm = self.algorithm.saved()
        self.pairing = False

        def restore() -> None:
            self.bound, self.choice, self.algorithm, self._open_terms, self._compiled, self.no_rows = state
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
        self.algorithm = algorithm
        self.pairing = False

    def _store_again(self, algorithm: Algorithm) -> None:
        """Store the live tuples in an algorithm, without joining them."""
        for chunk in chunks_again(self.stores, self._encoded_again, _LARGEST_CHUNK):
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
