"""The result stream of a chain of nodes: collected and punctuated (LLHJ paper, sections 5 and 6.1).

The collector reads both high-water marks, then empties every node's ring, and may then emit a punctuation: nothing
earlier than the lower mark will follow. This order is required, since all results from before the marks were raised
are then in the rings. Sorted output (section 6.2) waits for its punctuation in `joins.live.flow.HeldPairs`.
"""

from __future__ import annotations

from streamjoin._arrays import Array
from streamjoin.handshake.kernels.links import (
    ASLEEP,
    AWAITED,
    AWAITS_RESULTS,
    BASES,
    COLLECTOR,
    ENOUGH,
    FINISHED,
    GATE,
    MARKS,
    NODES,
    RESULTS_HEAD,
    RESULTS_TAIL,
    SEQ,
    UPTO,
    leaves_at,
    left_by,
    node_at,
    ring,
)
from streamjoin.jit.atomics import fence, load, sleep_on, store
from streamjoin.jit.crew import idle, nap, stand, stopped
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64, cycles
from streamjoin.kernels.trees.entries import LARGEST

COLLECT, PUNCTUATE = range(2)

# The collector looks again after this many microseconds: nodes that yield between two steps may miss that it sleeps.
_SLEEP_US = 1_000

# The collector's counters.
WRITTEN = 0
PUNCTUATIONS = 1
OVERFLOWED = 2  # results that did not fit the output
COLLECTED_WORDS = 3


@kernel
def gate_of(mark: int, mem: I64, side: int, facts: Array) -> int:
    """The gate position below which a side is done, up to a high-water mark."""
    row = mark - mem[BASES + side]
    return LARGEST if row >= facts.shape[0] else int(facts[row, GATE])


@kernel
def _vacuum(mem: I64, k: int, results: Array, out: Array, counts: I64) -> None:
    """Empty node k's ring into the output; a result is stamped when it is written out."""
    at = node_at(k)
    ring = results[k]
    head, tail = mem[at + RESULTS_HEAD], load(mem, at + RESULTS_TAIL)
    for position in range(head, tail):
        row = ring[position & (ring.shape[0] - 1)]
        if counts[WRITTEN] < out.shape[0]:
            out[counts[WRITTEN], 0] = row[0]
            out[counts[WRITTEN], 1] = row[1]
            out[counts[WRITTEN], 2] = cycles()
            counts[WRITTEN] += 1
        else:
            counts[OVERFLOWED] += 1
    if tail > head:
        store(mem, at + RESULTS_HEAD, tail)


@kernel
def collect(
    crew: I64, me: int, mem: I64, mode: int, results: Array, facts_r: Array, facts_s: Array,
    out: Array, punctuations: Array, counts: I64,
) -> None:  # fmt: skip
    """Collect until every node is done. A punctuation is (results before it, bound below which none follows)."""
    last_bound = 0
    tries = 0
    ended = False
    while not ended:
        ended = load(mem, FINISHED) == mem[NODES]
        before = 0
        if mode != COLLECT:
            marks = load(mem, MARKS), load(mem, MARKS + 8)
            before = min(gate_of(marks[0], mem, 0, facts_r), gate_of(marks[1], mem, 1, facts_s))
        done = counts[WRITTEN]
        for k in range(mem[NODES]):
            _vacuum(mem, k, results, out, counts)
        busy = counts[WRITTEN] > done
        if before > last_bound and counts[PUNCTUATIONS] < punctuations.shape[0]:
            punctuations[counts[PUNCTUATIONS], 0] = counts[WRITTEN]
            punctuations[counts[PUNCTUATIONS], 1] = before
            counts[PUNCTUATIONS] += 1
            last_bound = before
        if busy:
            tries = 0
        elif not ended:
            stand(crew, me, AWAITS_RESULTS)
            if not idle(crew, tries):
                return
            tries += 1


@kernel
def await_room(crew: I64, me: int, mem: I64, results: Array) -> bool:
    """Wait until the collector has taken half of node `me`'s results; False if the crew was stopped."""
    at = node_at(me)
    ring(mem, COLLECTOR)
    tries = 0
    while 2 * (mem[at + RESULTS_TAIL] - load(mem, at + RESULTS_HEAD)) > results.shape[0]:
        stand(crew, me, AWAITS_RESULTS)
        if not idle(crew, tries):
            return False
        tries += 1
    return True


@kernel
def _mark(mem: I64, side: int, as_they_leave: bool) -> int:
    """The place of a side below which all is done: its high-water mark, or what has left the chain."""
    return left_by(mem, side, leaves_at(mem, side)) if as_they_leave else load(mem, MARKS + 8 * side)


@kernel
def _has_results(mem: I64, awaited: I64, as_they_leave: bool, enough: int) -> bool:
    """Whether there are `enough` results, or both marks, once they are known, are at `awaited`."""
    waiting = 0
    for k in range(mem[NODES]):
        at = node_at(k)
        waiting += load(mem, at + RESULTS_TAIL) - mem[at + RESULTS_HEAD]
    end_r, end_s = load(awaited, 0), load(awaited, 1)
    if waiting >= enough:
        return True
    # Of tuples that leave the chain, those of side 0 decide.
    passed = as_they_leave or _mark(mem, 1, as_they_leave) >= end_s
    return bool(end_r >= 0 and passed and _mark(mem, 0, as_they_leave) >= end_r)


@kernel
def await_results(crew: I64, me: int, mem: I64, awaited: I64, as_they_leave: bool, enough: int, naps: int) -> None:
    """Wait for `enough` results of a running chain, or until both marks are at `awaited`, for some naps at the most.

    `awaited` is below 0 until it is known.
    """
    for _ in range(naps):
        if _has_results(mem, awaited, as_they_leave, enough):
            return
        stand(crew, me, AWAITS_RESULTS)
        rung = load(mem, COLLECTOR)
        mem[COLLECTOR + AWAITED] = load(awaited, 0)
        mem[COLLECTOR + AWAITED + 1] = load(awaited, 1)
        mem[COLLECTOR + ENOUGH] = max(1, enough // mem[NODES])
        store(mem, COLLECTOR + ASLEEP, 1)
        fence()
        if mem[COLLECTOR + AWAITED] < 0 or as_they_leave:
            nap(crew)
        elif not _has_results(mem, awaited, as_they_leave, enough):
            sleep_on(mem, COLLECTOR, rung, _SLEEP_US)
        store(mem, COLLECTOR + ASLEEP, 0)
        if stopped(crew):
            return


@kernel
def take_results(mem: I64, results: Array, out: Array, reached: I64, as_they_leave: bool) -> int:
    """Take the results of a running chain, as many as `out` holds, and both marks; returns how many.

    `reached` moves on only if every ring was emptied after the marks were read.
    """
    mark_r, mark_s = _mark(mem, 0, as_they_leave), _mark(mem, 1, as_they_leave)
    count = 0
    emptied = True
    for k in range(mem[NODES]):
        at = node_at(k)
        head, tail = mem[at + RESULTS_HEAD], load(mem, at + RESULTS_TAIL)
        last = min(tail, head + out.shape[0] - count)
        for position in range(head, last):
            row = results[k, position & (results.shape[1] - 1)]
            out[count, 0] = row[0]
            out[count, 1] = row[1]
            count += 1
        if last > head:
            store(mem, at + RESULTS_HEAD, last)
        emptied = emptied and last == tail
    if emptied:
        reached[0] = max(reached[0], mark_r)
        reached[1] = max(reached[1], mark_s)
    return count


@kernel
def pairs_of(mem: I64, rows: Array, facts_r: Array, facts_s: Array, later: I64, seqs: I64) -> None:
    """Results as pairs: the gate position of the later tuple, and the stream position of the earlier."""
    for i in range(rows.shape[0]):
        r, s = rows[i, 0] - mem[BASES], rows[i, 1] - mem[BASES + 1]
        if facts_r[r, SEQ] < facts_s[s, UPTO]:
            later[i], seqs[i] = facts_s[s, GATE], facts_r[r, SEQ]
        else:
            later[i], seqs[i] = facts_r[r, GATE], facts_s[s, SEQ]
