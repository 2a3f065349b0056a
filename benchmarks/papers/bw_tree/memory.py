"""The memory of a Bw-Tree: the mapping table, pages, per-thread lists of free pages, reclamation by epochs.

Arena: head, threads, mapping table, links of free numbers, ring, pages. A node is a number; its word in the mapping
table says which page it is and where its chain of delta records begins. Every change of a node is a compare-and-swap of
that word: one more record in front of the chain, another page, or the mark that the node is frozen. A page holds a
sorted base, and room for the records of its chain, which thread by thread is reserved by a counter.

A page that was replaced may still be read. Each thread announces the epoch in which it last held nothing; a page that
was retired in an epoch is free once every thread that is online has announced a later one. Retired and free pages are
lists of the thread that retired them. A number whose node is gone is freed with the last page of the node.

Invariants: a page in use changes only in the records that are not published yet, in `RESERVED` and in `LINKS`. The
mapping table has 0 for a free number. When no page is left an operation says so before it has changed anything.
"""

from __future__ import annotations

from benchmarks.papers.bw_tree.apart import stay_apart
from streamjoin.jit.atomics import add, fence, load, store
from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import I64
from streamjoin.kernels.trees.entries import LARGEST, OWN

# Words of the head. What changes has a cache line to itself.
ROOT = OWN  # the root's number times 256 plus its level
EPOCH = OWN + 8
USED_PAGES = OWN + 16  # pages from here on were never used; 0 stands for none
USED_NODES = OWN + 17
TABLE = OWN + 24  # offset of the mapping table
LINKS_OF_FREE = OWN + 25  # offset of the links of free numbers
PAGES = OWN + 26  # offset of the pages
PAGE_WORDS = OWN + 27
MOST_PAGES = OWN + 28
MOST_NODES = OWN + 29
CHAIN = OWN + 30  # records of a leaf's chain
INNER_CHAIN = OWN + 31
LEAF_MOST = OWN + 32  # entries that a leaf keeps after a consolidation; more are split
INNER_MOST = OWN + 33
WORDS_AT = OWN + 34  # offset in a page of its sorted words
SEQS_APART = OWN + 35  # from a leaf's word to its seq
INNER_APART = OWN + 36  # from an inner node's word to its seq, and from there to the child
THREADS = OWN + 37
THREADS_AT = OWN + 38
WINDOW_OWN = OWN + 40  # first word for what is built on the tree

# Words of a page. The first line is what searches and updates read.
COUNT = 0
NEXT = 1  # the node on the right; 0: none
HIGH_WORD = 2  # entries from here on are on the right, if there is a node
HIGH_SEQ = 3
RESERVED = 4  # records that were handed out
LEVEL = 5  # 0: a leaf
LOW_WORD = 6  # where its node was split off
LOW_SEQ = 7
LINKS = 8  # of a frozen node: which of its two links are gone
FOLLOWING = 9  # in a list of free or retired pages
RETIRED_IN = 10  # epoch
RIDER = 11  # a number to free with the page
SLOTS = 16  # the records
SLOT = 4
# Words of a record.
BEFORE = 0  # the record before it in the chain plus 1, and its kind from bit 8 on
WORD = 1
SEQ = 2
CHILD = 3  # of an inner node
SIZE = 3  # of a leaf: its entries with this record
INSERTED, DELETED = 0, 1
KIND_SHIFT = 8
MOST_CHAIN = 16

# A word of the mapping table: page, first record plus 1, frozen.
FROZEN = 1
HEAD_MASK = 31
PAGE_SHIFT = 6

# Words of a thread.
ANNOUNCED = 0  # the epoch in which it last held nothing
FREE = 8
FREE_COUNT = 9
RETIRED = 10
LAST_RETIRED = 11
RETIRED_COUNT = 12
FREE_NODE = 13
UNFINISHED = 14  # a node whose removal stopped for want of pages; 0: none
THREAD_WORDS = 16

OFFLINE = LARGEST
SPARE = 64  # pages that a thread keeps for changes which must not stop halfway
BATCH = 32  # pages that are retired before somebody looks for free ones


@inlined
def page_at(mem: I64, page: int) -> int:
    """Where a page lies."""
    at: int = mem[PAGES] + page * mem[PAGE_WORDS]
    return at


@inlined
def state_of(mem: I64, node: int) -> int:
    """A node's word of the mapping table."""
    return load(mem, mem[TABLE] + node)


@inlined
def page_of(mem: I64, state: int) -> int:
    """Where the page of a state lies."""
    return page_at(mem, state >> PAGE_SHIFT)


@inlined
def first_record(state: int) -> int:
    """The first record of a state's chain plus 1; 0: it has none."""
    return (state >> 1) & HEAD_MASK


@inlined
def thread_at(mem: I64, me: int) -> int:
    """Where the words of a thread lie."""
    at: int = mem[THREADS_AT] + me * THREAD_WORDS
    return at


@kernel
def _take_unused(mem: I64) -> int:
    """A page that was never used; 0 when there is none."""
    if load(mem, USED_PAGES) >= mem[MOST_PAGES]:
        return 0
    page = add(mem, USED_PAGES, 1)
    return page if page < mem[MOST_PAGES] else 0


@kernel
def take_page(mem: I64, me: int) -> int:
    """A page of this thread's own; 0 when there is none."""
    mine = thread_at(mem, me)
    page = mem[mine + FREE]
    if page:
        mem[mine + FREE] = mem[page_at(mem, page) + FOLLOWING]
        mem[mine + FREE_COUNT] -= 1
    else:
        page = _take_unused(mem)
        if page == 0:
            return 0
    at = page_at(mem, page)
    mem[at + RESERVED] = 0
    mem[at + LINKS] = 0
    mem[at + RIDER] = 0
    return int(page)


@kernel
def give_page(mem: I64, me: int, page: int) -> None:
    """Take back a page that no other thread can have seen."""
    mine = thread_at(mem, me)
    mem[page_at(mem, page) + FOLLOWING] = mem[mine + FREE]
    mem[mine + FREE] = page
    mem[mine + FREE_COUNT] += 1


@kernel
def take_node(mem: I64, me: int) -> int:
    """A free number; 0 when there is none."""
    mine = thread_at(mem, me)
    node = mem[mine + FREE_NODE]
    if node:
        mem[mine + FREE_NODE] = mem[mem[LINKS_OF_FREE] + node]
        return int(node)
    if load(mem, USED_NODES) >= mem[MOST_NODES]:
        return 0
    node = add(mem, USED_NODES, 1)
    return int(node) if node < mem[MOST_NODES] else 0


@kernel
def give_node(mem: I64, me: int, node: int) -> None:
    """Take back a number that no other thread can have."""
    mine = thread_at(mem, me)
    store(mem, mem[TABLE] + node, 0)
    mem[mem[LINKS_OF_FREE] + node] = mem[mine + FREE_NODE]
    mem[mine + FREE_NODE] = node


@kernel
def retire(mem: I64, me: int, page: int, rider: int) -> None:
    """Free a page that nothing leads to any more once no thread can have it, and a number with it."""
    stay_apart()
    mine = thread_at(mem, me)
    at = page_at(mem, page)
    mem[at + RIDER] = rider
    mem[at + FOLLOWING] = 0
    fence()  # whoever announces a later epoch has seen that nothing leads here
    mem[at + RETIRED_IN] = load(mem, EPOCH)
    if mem[mine + RETIRED_COUNT]:
        mem[page_at(mem, mem[mine + LAST_RETIRED]) + FOLLOWING] = page
    else:
        mem[mine + RETIRED] = page
    mem[mine + LAST_RETIRED] = page
    mem[mine + RETIRED_COUNT] += 1


@kernel
def reclaim(mem: I64, me: int) -> None:
    """Free what this thread retired before the oldest epoch that a thread may be in."""
    stay_apart()
    least = OFFLINE
    for k in range(mem[THREADS]):
        least = min(least, load(mem, thread_at(mem, k) + ANNOUNCED))
    mine = thread_at(mem, me)
    while mem[mine + RETIRED_COUNT]:
        page = mem[mine + RETIRED]
        at = page_at(mem, page)
        if mem[at + RETIRED_IN] >= least:
            break
        mem[mine + RETIRED] = mem[at + FOLLOWING]
        mem[mine + RETIRED_COUNT] -= 1
        if mem[at + RIDER]:
            give_node(mem, me, mem[at + RIDER])
        give_page(mem, me, page)


@kernel
def add_epoch(mem: I64) -> None:
    """Begin another epoch."""
    add(mem, EPOCH, 1)


@kernel
def _renew(mem: I64, me: int) -> None:
    """Announce an epoch after all that this thread retired, and see to its free pages."""
    stay_apart()
    mine = thread_at(mem, me)
    add_epoch(mem)
    store(mem, mine + ANNOUNCED, load(mem, EPOCH))
    fence()
    reclaim(mem, me)
    while mem[mine + FREE_COUNT] < SPARE:
        page = _take_unused(mem)
        if page == 0:
            break
        give_page(mem, me, page)


@inlined
def rest(mem: I64, me: int) -> None:
    """Say that this thread, which is online, holds nothing just now."""
    mine = thread_at(mem, me)
    if mem[mine + RETIRED_COUNT] >= BATCH or mem[mine + FREE_COUNT] < SPARE:
        _renew(mem, me)
    else:
        store(mem, mine + ANNOUNCED, load(mem, EPOCH))
        fence()


@inlined
def rest_alone(mem: I64) -> None:
    """The same for the only thread of a tree: no other waits for what it leaves undone."""
    mine = thread_at(mem, 0)
    if mem[mine + RETIRED_COUNT] >= BATCH or mem[mine + FREE_COUNT] < SPARE:
        _renew(mem, 0)


@kernel
def come_online(mem: I64, me: int) -> None:
    """From here on this thread may read pages."""
    store(mem, thread_at(mem, me) + ANNOUNCED, load(mem, EPOCH))
    fence()
    rest(mem, me)


@kernel
def go_offline(mem: I64, me: int) -> None:
    """From here on this thread reads no page."""
    store(mem, thread_at(mem, me) + ANNOUNCED, OFFLINE)
