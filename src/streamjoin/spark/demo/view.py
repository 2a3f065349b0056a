"""The demo's output: a live frame on a terminal, regular lines elsewhere, and a summary.

It only draws `DemoFigures`. Without a UTF-8 terminal there are no curves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from rich import box
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from streamjoin.spark.demo.figures import DemoFigures

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
