"""The arena of a ScaleGate: its words, its nodes, how references to nodes are compared and kept valid.

ScaleJoin's algorithm 2 without a garbage collector. Every source makes its nodes in a ring of its own; its keys only
rise, so its oldest node is always the first to fall behind all readers and all places where a search may start, and the
ring is its memory, recycled in order. A reference is (number of the node in its source, source): no reference is ever
used twice, so a compare-and-swap can't mistake a recycled node for the one it replaced, and the holder of an old
reference finds another number in the node.

Invariant: a node is recycled only when the head of every reader and the hint of every source lie behind it in the order
(time, rank of the source, number). So whatever can be reached at the bottom level from one's own head or hint stays
as it is. The upper levels are unprotected shortcuts: a reference read there is used only if the node still
carries its number after its key was read.
"""

from __future__ import annotations

from streamjoin.jit.atomics import load
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64

LEVELS = 4
NIL = -1
NEVER = -(1 << 63)
EVER = (1 << 63) - 1

# The head of the arena; what changes has a cache line of its own.
VERSION = 0  # odd while a source joins
JOINING = 8  # the lock for joining
PLACED = 9  # odd while a head or a hint is put somewhere it did not come to by itself
N_SOURCES = 16
N_READERS = 17
LEFT_TIME = 18  # the greatest bound of a reader that left
LEFT_RANK = 19
MISSING = 20  # not 0: nothing is ready, since sources are still to come
LASTS = 21  # not 0: when no source is open, what waits is ready, and the bound stays there for sources that come later
MOST_SOURCES = 24
MOST_READERS = 25
MASK = 26  # nodes of a ring, less one
SOURCES = 27  # where the sections begin
READERS = 28
NODES = 29
HEAD_WORDS = 32

# A source's words: a line for the readers, a line for those who recycle, two of its own.
CLOCK = 0  # nothing with an earlier time will come
RANK = 1  # decides among equal times
FINISHED = 2  # 0: readers wait for it; otherwise IS_OVER or IS_IDLE
FAR = 3  # of a source that is not waited for: the time of its last tuple, or its clock if it may come back
HINT = 8  # the node after which its next one goes, or one before that
STATE = 9
COUNT = 16  # nodes made
FREE = 17  # nodes numbered below this can be recycled
SHORTCUTS = 24  # by level, the last node passed there
SOURCE_WORDS = 32

IS_OVER, IS_IDLE = 1, 2

RESTING, ADDING, DROPPED = 0, 1, 2  # DROPPED: another source dropped the hint to recycle nodes

# A reader's words. Its bound is written under a sequence count, odd meanwhile, so that it is read consistently.
HEAD = 0  # the last node it has read
ACTIVE = 1
BOUND_COUNT = 2
BOUND_TIME = 3
BOUND_RANK = 4
READER_WORDS = 16

# A node is one cache line.
SELF = 0
TIME = 1
PAYLOAD = 2
NEXT = 3
HEIGHT = 7  # the highest level it is linked at
NODE_WORDS = 8

SLOT_BITS = 12
MOST_SLOTS = (1 << SLOT_BITS) - 1


@kernel
def source_at(mem: I64, slot: int) -> int:
    """Where a source's words begin."""
    place: int = mem[SOURCES] + slot * SOURCE_WORDS
    return place


@kernel
def reader_at(mem: I64, reader: int) -> int:
    """Where a reader's words begin."""
    place: int = mem[READERS] + reader * READER_WORDS
    return place


@kernel
def slot_of(node: int) -> int:
    """The source of a node."""
    return node & MOST_SLOTS


@kernel
def number_of(node: int) -> int:
    """The node's number in its source."""
    return node >> SLOT_BITS


@kernel
def node_at(mem: I64, node: int) -> int:
    """Where a node's words lie."""
    slot = node & MOST_SLOTS
    ring = mem[MASK] + 1
    place: int = mem[NODES] + (slot * ring + ((node >> SLOT_BITS) & mem[MASK])) * NODE_WORDS
    return place


@kernel
def rank_of(mem: I64, slot: int) -> int:
    """A source's rank."""
    rank: int = load(mem, mem[SOURCES] + slot * SOURCE_WORDS + RANK)
    return rank


@kernel
def lies_above(mem: I64, node: int, time: int, rank: int) -> bool:
    """Whether a node that can't be recycled sorts after (time, rank); equals of one source are in order already."""
    its = mem[node_at(mem, node) + TIME]
    if its != time:
        return bool(its > time)
    return rank_of(mem, slot_of(node)) > rank


@kernel
def precedes(mem: I64, time: int, node: int, other_time: int, other: int) -> bool:
    """Whether one node sorts before another, given their times."""
    if time != other_time:
        return time < other_time
    if slot_of(node) != slot_of(other):
        return rank_of(mem, slot_of(node)) < rank_of(mem, slot_of(other))
    return node < other


@kernel
def still(mem: I64, node: int) -> bool:
    """Whether an unprotected reference still names the node it named: asked after its words were read."""
    same: bool = load(mem, node_at(mem, node) + SELF) == node
    return same


def arena_words(sources: int, readers: int, ring: int) -> int:
    """Words of a gate for these numbers of sources and readers, with `ring` nodes (a power of two) for each source."""
    if not 1 <= sources < MOST_SLOTS:
        raise ValueError(f"a gate has 1 to {MOST_SLOTS - 1} sources, not {sources}")
    if readers < 1:
        raise ValueError("a gate has at least one reader")
    if ring < 2 or ring & (ring - 1):
        raise ValueError(f"the nodes of a source are a power of two, at least 2, not {ring}")
    return _nodes(sources, readers) + (sources * ring + 1) * NODE_WORDS


def _nodes(sources: int, readers: int) -> int:
    # One source more than can be added: the node that everything comes after is its only one.
    return HEAD_WORDS + (sources + 1) * SOURCE_WORDS + readers * READER_WORDS


def lay_out(mem: I64, sources: int, readers: int, ring: int) -> None:
    """Make an empty gate without sources and readers in a zeroed arena."""
    mem[MOST_SOURCES], mem[MOST_READERS], mem[MASK] = sources, readers, ring - 1
    mem[SOURCES] = HEAD_WORDS
    mem[READERS] = HEAD_WORDS + (sources + 1) * SOURCE_WORDS
    mem[NODES] = _nodes(sources, readers)
    mem[HEAD_WORDS + sources * SOURCE_WORDS + RANK] = NEVER
    mem[LEFT_TIME], mem[LEFT_RANK] = NEVER, NEVER
    first = int(mem[NODES]) + sources * ring * NODE_WORDS
    mem[first + SELF], mem[first + TIME] = sources, NEVER
    mem[first + NEXT : first + NEXT + LEVELS] = NIL
    mem[first + HEIGHT] = LEVELS - 1
