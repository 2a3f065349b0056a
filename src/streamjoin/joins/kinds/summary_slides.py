"""The aggregates of windows that slide over the right tuples of a join with summaries, and the windows themselves.

A `Slide` has what it needs of each stored tuple in arrays of the side's block, and a table with a row for each key; a
`WindowFrame` moves some of them over the tuples together. The tables follow from the stored tuples and from how far the
frame is, so nothing here is saved or undone: a frame that starts anew passes over what is stored once more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.kinds.exact_columns import Numbers, counts_of, numbers_of
from streamjoin.joins.kinds.summary_values import order_words
from streamjoin.kernels.exact import Layout, round_floats
from streamjoin.kernels.kinds.summary import (
    ASKED,
    ENTERED,
    LEFT,
    NONE,
    SPARE_ROWS,
    WORST,
    schedule,
    slide_best,
    slide_newest,
)
from streamjoin.windows.buffer import ColumnBlock
from streamjoin.windows.encoding import flat, for_kernels

# The steps that are made at a time: they stay in the cache of a core.
_STEPS = 1 << 15
# The width of a layout of two words.
_SHORT = 3


@dataclass(frozen=True)
class SlideSteps:
    """Some steps of a frame: the row of each in the tables, its kind, and where they begin.

    `entered` and `left` are places among the stored tuples, whose first one has position `base`; `asked` is one among
    the left tuples.
    """

    rows: Array
    kinds: Array
    n: int
    entered: int
    left: int
    asked: int
    base: int

    @property
    def plain(self) -> tuple[Array, Array, int, int, int, int]:
        """What a kernel takes first."""
        return self.rows, self.kinds, self.n, self.entered, self.left, self.asked


@dataclass(frozen=True)
class WindowBounds:
    """Windows of left tuples that a frame is to answer for: both bounds in the words that say where they end."""

    starts: Array
    ends: Array
    keys: Array
    short: int
    beyond: int
    entering: Array
    leaving: Array


class Slide(ABC):
    """One aggregate of a window, or some of one column."""

    form: object = None
    """How the arrays and the table are to be read: the window starts anew where it changes."""

    def __init__(self, block: ColumnBlock) -> None:
        self.block = block

    def stored(self, number: int) -> Array:
        """An array of the block, with the row behind the last tuple, which a kernel may read."""
        return self.block.arrays[number][self.block.begin : self.block.end + 1]

    @abstractmethod
    def append(self, column: pa.Array, first: int) -> None:
        """Write the values of new tuples, from position `first` on, behind those of the block."""

    @abstractmethod
    def keep(self, old: Any, places: Array) -> None:
        """Write the values of another one's tuples."""

    @abstractmethod
    def start(self, n_rows: int) -> None:
        """Begin with an empty window, for this many rows of a table."""

    @abstractmethod
    def grow(self, n_rows: int) -> None:
        """More rows of the table."""

    @abstractmethod
    def ask(self, n: int) -> None:
        """Have room for the answers to `n` left tuples."""

    @abstractmethod
    def move(self, steps: SlideSteps, keys: Array) -> None:
        """Follow some steps."""

    def sized(self, sizes: Array) -> None:  # noqa: B027 - not all count
        """How many tuples the left tuples' windows have."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held beside the block."""

    def _room(self, n: int) -> slice:
        return slice(self.block.end, self.block.end + n)


class Sums(Slide):
    """The exact sum of a column, and how many values it has."""

    def __init__(self, block: ColumnBlock, type_: pa.DataType) -> None:
        super().__init__(block)
        values = numbers_of(flat(pa.nulls(0, type_))).values
        self._values = block.add(values.dtype, *values.shape[1:])
        self._present = block.add(np.bool_)
        self.form: Layout = Layout()
        self._table = self._answers = self.form.rows(0)
        # How many values were written since the layout was looked at.
        self._asked = self._written = 0

    @property
    def rows(self) -> Array:
        """The sum of each left tuple's window, as rows of the layout; only until the next windows."""
        return self._answers[: self._asked]

    @property
    def numbers(self) -> Numbers:
        """The values of the stored tuples, and of one more."""
        return Numbers(self.stored(self._values), self.stored(self._present))

    def append(self, column: pa.Array, first: int) -> None:  # noqa: ARG002
        """Write the values."""
        self._write(numbers_of(column))

    def keep(self, old: Sums, places: Array) -> None:
        """Write the values of another one's tuples."""
        self._write(old.numbers.take(places))

    def _write(self, numbers: Numbers) -> None:
        own, stored, n = _layout_of(numbers), len(self.block), len(numbers.present)
        layout, self._written = self.form.wide_enough(own) if stored else own, self._written + n
        if layout.width > _SHORT and self._written > 2 * stored:
            # What made the sums so wide may be gone.
            self._written = 0
            layout = _layout_of(self.numbers.take(slice(0, stored))).wide_enough(own) if stored else own
        self.form = layout
        room = self._room(n)
        self.block.arrays[self._values][room] = numbers.values
        self.block.arrays[self._present][room] = numbers.present

    def floats(self) -> tuple[Array, Array]:
        """The number of values of each left tuple's window and their sum, rounded once, of a column of floats."""
        rows = self.rows
        counts, sums = counts_of(rows).copy(), np.empty(len(rows))
        round_floats(rows, self.form.head, self.form.first, sums)
        return counts, sums

    def start(self, n_rows: int) -> None:
        """Begin with an empty window."""
        self._table = self.form.rows(n_rows)

    def grow(self, n_rows: int) -> None:
        """More rows of the table."""
        self._table = _longer(self._table, n_rows, 0)

    def ask(self, n: int) -> None:
        """Have room for answers."""
        self._answers, self._asked = _room_for(n + 1, self._answers, self.form.width), n

    def move(self, steps: SlideSteps, keys: Array) -> None:  # noqa: ARG002
        """Follow some steps."""
        self.numbers.slide(steps.plain, self._table, self.form, self._answers)

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return int(self._table.nbytes + self._answers.nbytes)


class Best(Slide):
    """The least and the greatest value of a column, or one of them; or by their order the first and the last.

    Where the order is that of words the answers are words (`order_words`), else the positions of tuples.
    """

    def __init__(self, block: ColumnBlock, orders: Sequence[str]) -> None:
        super().__init__(block)
        self.orders = tuple(orders)
        self._words = block.add(np.int64, len(orders))
        self._after = block.add(np.int64, len(orders))
        # The array that says which values are not NULL, from the first NULL on.
        self.form: int | None = None
        self._answers, self._counts = np.empty((0, len(orders)), np.int64), np.empty(0, np.int64)
        self._asked = self._middle = 0
        self.start(0)

    @property
    def words(self) -> Array:
        """For each left tuple the best word in each order; only until the next windows."""
        return self._answers[: self._asked]

    @property
    def counts(self) -> Array:
        """How many values each left tuple's window has; only until the next windows."""
        return self._counts[: self._asked]

    def words_at(self, places: Array) -> tuple[Array, Array]:
        """The words of stored tuples, and whether they have values."""
        present = np.ones(places.size, np.bool_) if self.form is None else self.stored(self.form)[places]
        return self.stored(self._words)[places], present

    def join(self, windows: Array, words: Array, counts: Array) -> None:
        """Add values to some windows: the best words of others, and how many values these have."""
        self.words[windows] = np.minimum(self.words[windows], words)
        self.counts[windows] += counts

    def put_back(self, order: Array) -> None:
        """The answers were asked for in another order."""
        self.words[order], self.counts[order] = self.words.copy(), self.counts.copy()

    def append(self, column: pa.Array, first: int) -> None:
        """Write the words."""
        present: Array = np.ones(len(column), np.bool_)
        if column.null_count:
            present = for_kernels(column.is_valid().to_numpy(zero_copy_only=False))
        self._write(
            [
                _positions(first, len(column), order)
                if order in _BY_POSITION
                else order_words(column, greatest=order == "MAX")
                for order in self.orders
            ],
            present,
        )

    def keep(self, old: Best, places: Array) -> None:
        """Write the words of another one's tuples, which have new positions."""
        words, present = old.words_at(places)
        own = [
            _positions(0, places.size, order) if order in _BY_POSITION else words[:, number]
            for number, order in enumerate(self.orders)
        ]
        self._write(own, present)

    def _write(self, words: Sequence[Array], present: Array) -> None:
        room, some_missing = self._room(present.size), not present.all()
        for number, own in enumerate(words):
            self.block.arrays[self._words][room, number] = np.where(present, own, WORST) if some_missing else own
        if some_missing and self.form is None:
            self.form = self.block.add(np.bool_, fill=1)
        if self.form is not None:
            self.block.arrays[self.form][room] = present

    def start(self, n_rows: int) -> None:
        """Begin with an empty window."""
        self._table = _longer(np.empty((0, 1 + 2 * len(self.orders)), np.int64), n_rows, WORST, 1)
        self._middle = 0

    def grow(self, n_rows: int) -> None:
        """More rows of the table."""
        self._table = _longer(self._table, n_rows, WORST, 1)

    def ask(self, n: int) -> None:
        """Have room for answers."""
        self._answers = _room_for(n + 1, self._answers, len(self.orders))
        self._counts, self._asked = _room_for(n + 1, self._counts), n

    def move(self, steps: SlideSteps, keys: Array) -> None:
        """Follow some steps."""
        present = _NOTHING if self.form is None else self.stored(self.form)
        middle = max(0, self._middle - steps.base)
        self._middle = steps.base + slide_best(
            *steps.plain, middle, keys, self.stored(self._words), present, self.stored(self._after), self._table,
            self._answers, self._counts,
        )  # fmt: skip

    def sized(self, sizes: Array) -> None:
        """How many tuples the windows have: as many values, where none is NULL."""
        if self.form is None:
            self.counts[:] = sizes

    @property
    def nbytes(self) -> int:
        """Bytes of the table and of the answers."""
        return int(self._table.nbytes + self._answers.nbytes + self._counts.nbytes)


class NewestTuples(Slide):
    """The newest tuple of a key in the window, the newest one before it, and each tuple's predecessor in its key."""

    def __init__(self, block: ColumnBlock) -> None:
        super().__init__(block)
        self._previous = block.add(np.int64)
        self.start(0)
        self.ask(0)

    @property
    def previous(self) -> Array:
        """The position of each stored tuple's predecessor."""
        return self.stored(self._previous)

    def append(self, column: pa.Array, first: int) -> None:
        """There is nothing to write before a tuple enters a window."""

    def keep(self, old: NewestTuples, places: Array) -> None:
        """There is nothing to write before a tuple enters a window."""

    def start(self, n_rows: int) -> None:
        """Begin with an empty window."""
        self._table = np.full((n_rows, 2), NONE, np.int64)

    def grow(self, n_rows: int) -> None:
        """More rows of the table."""
        self._table = _longer(self._table, n_rows, NONE)

    def ask(self, n: int) -> None:
        """Have room for answers."""
        self.found = np.empty((n, 2), np.int64)
        """For each left tuple the newest one in its window, and the newest one before."""

    def move(self, steps: SlideSteps, keys: Array) -> None:  # noqa: ARG002
        """Follow some steps."""
        slide_newest(*steps.plain, steps.base, self.previous, self._table, self.found)

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return int(self._table.nbytes)


class WindowFrame:
    """Windows that ascend over the stored tuples, and the slides that follow them."""

    def __init__(self, slides: Sequence[Slide]) -> None:
        self.slides = list(slides)
        self.entered = self.left = 0
        """The positions behind the newest tuple that has entered the window, and behind the newest that has left it."""
        self.start(0, 0)

    def start(self, base: int, n_keys: int) -> None:
        """Begin anew in front of the oldest stored tuple."""
        self.entered = self.left = base
        self._counts = np.zeros(n_keys + SPARE_ROWS, np.int64)
        for slide in self.slides:
            slide.start(len(self._counts))

    def sizes(self, bounds: WindowBounds, keys: Array, base: int, n_keys: int) -> Array:
        """Move over the windows of left tuples; returns the number of tuples in each, and has the slides answer."""
        if n_keys + SPARE_ROWS > len(self._counts):
            self._counts = _longer(self._counts, 2 * n_keys + SPARE_ROWS, 0)
            for slide in self.slides:
                slide.grow(len(self._counts))
        n = bounds.keys.size
        sizes, at = np.empty(n, np.int64), np.array([self.entered - base, self.left - base, 0], np.int64)
        for slide in self.slides:
            slide.ask(n)
        room = min(_STEPS, n + 2 * keys.size - int(at[ENTERED]) - int(at[LEFT]) + 1)
        rows, kinds = np.empty(room, np.int32), np.empty(room, np.uint8)
        done = room
        while done == room:
            begin = int(at[ENTERED]), int(at[LEFT]), int(at[ASKED])
            done = schedule(
                bounds.starts, bounds.ends, bounds.keys, bounds.short, bounds.beyond, keys, bounds.entering,
                bounds.leaving, at, self._counts, rows, kinds, sizes,
            )  # fmt: skip
            steps = SlideSteps(rows, kinds, done, *begin, base)
            for slide in self.slides:
                slide.move(steps, keys)
        for slide in self.slides:
            slide.sized(sizes)
        self.entered, self.left = base + int(at[ENTERED]), base + int(at[LEFT])
        return sizes

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return int(self._counts.nbytes) + sum(slide.nbytes for slide in self.slides)


_NOTHING = np.empty(0, np.bool_)
_BY_POSITION = ("FIRST", "LAST")


def _layout_of(numbers: Numbers) -> Layout:
    """The layout for sums of some values."""
    layout = numbers.layout()
    # Sums of two words have a way of their own; fractions may follow whole numbers.
    return layout.wide_enough(Layout(layout.first - 1, 2)) if layout.words == 1 else layout


def _positions(first: int, n: int, order: str) -> Array:
    """The words of positions: the least is the first, or the last."""
    places = np.arange(first, first + n)
    return ~places if order == "LAST" else places


def _room_for(n: int, array: Array, *row: int) -> Array:
    """An array of at least `n` rows: the present one, if it is long enough, as fresh memory costs more."""
    if len(array) >= n and array.shape[1:] == row:
        return array
    return np.empty((n, *row), array.dtype)


def _longer(table: Array, n_rows: int, fill: int, zeros: int = 0) -> Array:
    """A table with this many rows, new ones filled but for some `zeros` in front."""
    longer = np.full((n_rows, *table.shape[1:]), fill, table.dtype)
    if zeros:
        longer[:, :zeros] = 0
    longer[: len(table)] = table
    return longer
