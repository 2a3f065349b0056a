"""The demo's output: a live frame on a terminal, regular lines elsewhere, and a summary.

The figures come from the join's files and from Spark's progress reports; nothing here takes part in the join. Without a
UTF-8 terminal there are no curves. A match counts once it can be read: when the sink's log names its file. Its latency
starts when the feed's files with the later of its two rows are complete.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich import box
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from streamjoin.spark.runtime.checkpoints import log_root
from streamjoin.storage.manifest import Manifest
from streamjoin.storage.places import Place, in_order

COLUMNS = (
    "result_time",
    "scheduled",
    "airport",
    "destination",
    "carrier",
    "flight",
    "delay",
    "wind",
    "visibility",
    "observed",
)
HISTORY = 40
RATE_SECONDS = 5.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Window:
    """The window log according to its newest manifest; expired rows stay in it until a merge drops them."""

    flights: int = 0
    weather: int = 0
    size: int = 0
    runs: int = 0
    late: int = 0


@dataclass
class DemoFigures:
    """The state of a run; rates are those of the last seconds, totals those of the whole run."""

    elapsed: float = 0.0
    flights: int = 0
    weather: int = 0
    matches: int = 0
    rates: tuple[float, float, float] = (0.0, 0.0, 0.0)
    latency: tuple[float, float] | None = None
    """Median and 95th percentile over all matches, in seconds."""
    window: Window = field(default_factory=Window)
    batches: int = 0
    batch_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    match_rates: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    newest: list[dict[str, Any]] = field(default_factory=list)
    finished: bool = False

    @property
    def batch_median(self) -> float:
        """The median duration of a batch in seconds."""
        return statistics.median(self.batch_seconds) if self.batch_seconds else 0.0


class Watch:
    """Reads new entries of the sink's log, the window log and Spark's progress at every `update`."""

    def __init__(self, output: Path, start: datetime, every: timedelta) -> None:
        self.figures = DemoFigures()
        self._output = output
        self._opening_us = (start - _EPOCH) // timedelta(microseconds=1)
        self._every_us = every // timedelta(microseconds=1)
        self._committed = -1
        self._files: set[str] = set()
        self._seen: set[int] = set()
        self._weights: list[tuple[float, int]] = []
        self._samples: deque[tuple[float, int, int, int]] = deque()
        self._manifest: Place | None = None
        self._next_point = 1.0

    def update(self, elapsed: float, progress: Iterable[Mapping[str, Any]]) -> DemoFigures:
        """Read new entries; `elapsed` is the time since the feeds began."""
        figures = self.figures
        figures.elapsed = elapsed
        for batch in progress:
            self._take_progress(batch)
        for path in self._new_commits():
            self._take_commit(path)
        self._take_window()
        self._take_rates()
        return figures

    def _take_progress(self, batch: Mapping[str, Any]) -> None:
        """Read Spark's reports; an idle trigger is a batch without rows, with the number of the next batch."""
        if not batch["numInputRows"] or batch["batchId"] in self._seen:
            return
        self._seen.add(batch["batchId"])
        rows = {source["description"].rstrip("]").rsplit("/", 1)[-1]: source for source in batch["sources"]}
        self.figures.flights += rows["flights"]["numInputRows"]
        self.figures.weather += rows["weather"]["numInputRows"]
        self.figures.batches += 1
        self.figures.batch_seconds.append(batch["durationMs"]["triggerExecution"] / 1000)

    def _new_commits(self) -> list[Path]:
        """New entries of the sink's log, in order; every tenth repeats the earlier ones."""
        paths = {}
        for path in (self._output / "matches" / "_spark_metadata").glob("[0-9]*"):
            number = int(path.name.removesuffix(".compact"))
            if number > self._committed:
                paths[number] = path
        self._committed = max(paths, default=self._committed)
        return [paths[number] for number in sorted(paths)]

    def _take_commit(self, entry: Path) -> None:
        visible = entry.stat().st_mtime
        names = [json.loads(line)["path"].rsplit("/", 1)[-1] for line in entry.read_text().splitlines()[1:]]
        fresh = [name for name in names if name not in self._files]
        self._files.update(fresh)
        if not fresh:
            return
        rows = pa.concat_tables(pq.read_table(self._output / "matches" / name, columns=list(COLUMNS)) for name in fresh)
        if not rows.num_rows:
            return
        self.figures.matches += rows.num_rows
        self.figures.newest = newest(rows, 12)
        moments = rows.column("result_time").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()
        slices, counts = np.unique((moments - self._opening_us) // self._every_us, return_counts=True)
        # The feeds write a slice one after the other, flights first, so no latency is too small.
        dropped = [(self._output / "flights" / f"{number:08d}.parquet").stat().st_mtime for number in slices]
        batch = [(visible - at, int(count)) for at, count in zip(dropped, counts, strict=True)]
        self._weights += batch
        self.figures.latencies.append(weighted(batch, (0.5,))[0])
        median, p95 = weighted(self._weights, (0.5, 0.95))
        self.figures.latency = median, p95

    def _take_window(self) -> None:
        versions = log_root(self._output / "checkpoint", "join") / "versions"
        try:
            latest = next(reversed(in_order(versions.glob("*/*.manifest"))), None)
            if latest is None or latest == self._manifest:
                return
            manifest = Manifest.from_json(latest.read_bytes())
        except FileNotFoundError:
            # The join pruned a version between the listing and the reading; the next update finds a newer one.
            return
        self._manifest = latest
        flights, weather = (sum(run.statistics[side].rows for run in manifest.runs) for side in (0, 1))
        blocks = [b for run in manifest.runs for piece in run.pieces for side in piece.blocks for b in side]
        late = sum(manifest.late.values())
        self.figures.window = Window(flights, weather, sum(b.length for b in blocks), len(manifest.runs), late)

    def _take_rates(self) -> None:
        figures = self.figures
        now = (figures.elapsed, figures.flights, figures.weather, figures.matches)
        self._samples.append(now)
        while len(self._samples) > 2 and self._samples[1][0] <= figures.elapsed - RATE_SECONDS:
            self._samples.popleft()
        then = self._samples[0]
        span = max(now[0] - then[0], 1e-9)
        flights, weather, matches = ((b - a) / span for a, b in zip(then[1:], now[1:], strict=True))
        figures.rates = flights, weather, matches
        if figures.elapsed >= self._next_point:
            self._next_point = figures.elapsed + 1.0
            figures.match_rates.append(matches)


def weighted(values: Sequence[tuple[float, int]], quantiles: Sequence[float]) -> list[float]:
    """Quantiles of values that each stand for a number of equal ones.

    >>> weighted([(3.0, 1), (1.0, 8), (2.0, 1)], (0.5, 0.9, 0.95))
    [1.0, 2.0, 3.0]
    """
    ordered = sorted(values)
    reached = np.cumsum([count for _, count in ordered])
    places = np.searchsorted(reached, [q * reached[-1] for q in quantiles])
    return [ordered[place][0] for place in places]


def newest(rows: pa.Table, number: int) -> list[dict[str, Any]]:
    """The latest matches, one per flight, the latest first."""
    ordered = rows.take(pc.sort_indices(rows, sort_keys=[("result_time", "descending")])[: 50 * number]).to_pylist()
    first = {(row["carrier"], row["flight"]): row for row in reversed(ordered)}
    return sorted(first.values(), key=lambda row: row["result_time"], reverse=True)[:number]


CONDITION = "at the same airport, at most an hour apart; New York, January 2013"
WIDTH = 100
PLAIN_SECONDS = 2.0
_BARS = "▁▂▃▄▅▆▇█"
_OTHER_ROWS = 24
"""Lines of the frame and the summary, without the matches."""

Show = Callable[[DemoFigures], None]


def is_live(console: Console) -> bool:
    """Whether the console can redraw its output."""
    return console.is_terminal and not console.is_dumb_terminal


@contextlib.contextmanager
def view(console: Console, seconds: float) -> Iterator[Show]:
    """A function that shows figures: in place on a terminal, as plain lines anywhere else."""
    if not is_live(console):
        yield _PlainLines(console)
        return
    with Live(frame(DemoFigures(), seconds, console), console=console, auto_refresh=False) as live:
        yield lambda figures: live.update(frame(figures, seconds, console), refresh=True)


class _PlainLines:
    """A line of figures every few seconds of the run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = PLAIN_SECONDS

    def __call__(self, figures: DemoFigures) -> None:
        if figures.elapsed < self._next:
            return
        self._next = figures.elapsed + PLAIN_SECONDS
        self._console.print(plain_line(figures), markup=False, highlight=False, soft_wrap=True)


def plain_line(figures: DemoFigures) -> str:
    """The figures of one moment on one line."""
    flights, weather, matches = figures.rates
    parts = [
        f"{figures.elapsed:3.0f} s",
        f"flights {flights:,.0f}/s",
        f"weather {weather:,.0f}/s",
        f"matches {matches:,.0f}/s",
        f"latency {_seconds(figures.latency[0])}" if figures.latency else "latency -",
        f"window {figures.window.flights + figures.window.weather:,}",
        f"batch {_seconds(figures.batch_median)}",
    ]
    return "  ".join(parts)


def frame(figures: DemoFigures, seconds: float, console: Console) -> RenderableType:
    """The whole live picture."""
    width = min(WIDTH, console.width)
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=seconds, completed=min(figures.elapsed, seconds), width=max(20, width - 30)),
        _moment(figures, seconds),
    )
    head = Group(
        Text.assemble(("flights", "bold cyan"), " joined with ", ("weather", "bold cyan"), ": ", CONDITION), bar
    )
    room = max(3, min(10, console.height - _OTHER_ROWS))
    return Group(
        Panel(head, title="[bold]streamjoin on Spark[/]", title_align="left", width=width, border_style="cyan"),
        Padding(_numbers(figures, curves=console.encoding.startswith("utf"), width=width), (0, 2)),
        Padding(_matches(figures, room, width - 4), (1, 2, 0, 2)),
    )


def _numbers(figures: DemoFigures, *, curves: bool, width: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", width=8)
    table.add_column(justify="right", width=17)
    table.add_column(width=30)
    table.add_column(style="green", no_wrap=True, overflow="crop")
    room = max(0, min(32, width - 68)) if curves else 0
    window, waits = figures.window, figures.latency
    flights, weather, matches = figures.rates
    table.add_row("flights", f"{flights:,.0f} rows/s", f"{figures.flights:,} so far")
    table.add_row("weather", f"{weather:,.0f} rows/s", f"{figures.weather:,} so far")
    table.add_row("matches", f"{matches:,.0f} rows/s", f"{figures.matches:,} so far", curve(figures.match_rates, room))
    table.add_row(
        "latency",
        _seconds(waits[0]) if waits else "-",
        f"95% within {_seconds(waits[1])}" if waits else "",
        curve(figures.latencies, room),
    )
    last = figures.batch_seconds[-1] if figures.batch_seconds else 0.0
    table.add_row(
        "batch",
        _seconds(last) if last else "-",
        f"median {_seconds(figures.batch_median)} of {figures.batches}" if last else "",
        curve(list(figures.batch_seconds), room),
    )
    storage = f"{_bytes(window.size)} in {_count(window.runs, 'sorted run')}"
    table.add_row("window", f"{window.flights + window.weather:,} rows", storage)
    table.add_row("late", f"{window.late:,} rows")
    return table


def _matches(figures: DemoFigures, number: int, width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, width=width)
    for name in ("scheduled", "flight", "from", "to", "delay", "wind", "sight", "observed"):
        justify: JustifyMethod = "left" if name in ("scheduled", "flight", "from", "to") else "right"
        # Rich marks truncated text with a character that not every terminal has.
        table.add_column(name, justify=justify, no_wrap=True, overflow="crop")
    for row in figures.newest[:number]:
        table.add_row(
            f"{row['scheduled']:%d %b %H:%M}",
            Text(f"{row['carrier']} {row['flight']}", style="bold cyan"),
            row["airport"],
            row["destination"],
            "cancelled" if row["delay"] is None else f"{row['delay']:+,} min",
            f"{row['wind']:.0f} mph",
            f"{row['visibility']:.0f} mi",
            _apart(row["scheduled"] - row["observed"]),
        )
    for _ in range(number - len(figures.newest)):
        table.add_row()
    return table


def curve(values: Sequence[float], room: int) -> str:
    """The last values as a row of bars from zero to the largest.

    >>> curve([0.0, 1.0, 2.0, 4.0], 3)
    '▃▅█'
    """
    shown = list(values)[-room:] if room else []
    top = max(shown, default=0.0)
    return "".join(_BARS[min(7, int(8 * value / top))] if top else _BARS[0] for value in shown)


def closing(console: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print the summary: a title, and rows of a name and a text."""
    console.print()
    console.print(title, style="bold green", highlight=False, soft_wrap=True)
    for name, text in rows:
        line = Text.assemble((f"  {name:<9}", "bold"), text)
        console.print(line, highlight=False, soft_wrap=True)


def _moment(figures: DemoFigures, seconds: float) -> str:
    if figures.elapsed <= seconds:
        return f"{figures.elapsed:.0f} of {seconds:g} s"
    return "all joined" if figures.finished else "joining the rest"


def _apart(span: timedelta) -> str:
    minutes = span / timedelta(minutes=1)
    return f"{abs(minutes):,.0f} min {'before' if minutes >= 0 else 'after'}"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.0f} kB"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
