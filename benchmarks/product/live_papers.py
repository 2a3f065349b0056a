"""The figures of the handshake and ScaleJoin papers that speak of latency, redone through `sj.live`.

Windows are seconds long instead of the papers' 100 and 200 seconds or 15 minutes; the latency of the original handshake
join scales with them, that of the low-latency join does not. Both sides bring 8,000 tuples per second with payload
columns, pushed from threads in batches of 4 or 64, and a consumer stamps the rows. `llhj_fig5`, `llhj_fig18` to
`llhj_fig20` and `scalejoin_fig7b` measure the same inside the harness, without Arrow, Python or a consumer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import Cell, Context, Experiment, Row
from benchmarks.papers.llhj_latency import model
from benchmarks.papers.parallel_experiment import cores
from benchmarks.product.live_feed import LiveLoad, pace, saturate

HANDSHAKE, LOW_LATENCY, SCALEJOIN = "handshake", "low_latency_handshake", "scalejoin"
_RATE = 16_000
_VALUES = 3_000
# Windows that a run lasts.
_LENGTH = 2.5
_SCALEJOIN_WINDOW, _SCALEJOIN_LOAD = 1 << 14, 0.8


class LivePapers(Experiment):
    """Milliseconds from push to consumer for the papers' own settings."""

    title = "sj.live: the latency figures of the handshake and ScaleJoin papers"
    claim = (
        "LLHJ, figures 5 and 18 to 20: handshake join settles below |W_R||W_S| / (|W_R| + |W_S|), the low-latency join "
        "takes some milliseconds with batches of 64 and about one with batches of 4; ScaleJoin, figure 7b: at most "
        "70 ms near full rate"
    )
    measure = "mean_ms"
    unit = "ms (less is better)"
    repeats = 1
    warmups = 0
    across, lines, log = "workers", ("system", "batch", "window_r"), True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Both handshake joins on two pairs of windows, and ScaleJoin near its full rate."""
        scale = 0.1 if quick else 1.0
        workers = [2] if quick else [n for n in (1, 2, 4, 8) if n <= max(2, cores())]
        pairs = [(2.0, 2.0)] if quick else [(2.0, 2.0), (1.0, 2.0)]
        cells: list[Cell] = []
        for n in workers:
            for left, right in pairs:
                windows = {"window_r": left * scale, "window_s": right * scale}
                cells.append({"system": HANDSHAKE, "workers": n, "batch": 4, **windows})
                cells += [{"system": LOW_LATENCY, "workers": n, "batch": batch, **windows} for batch in (4, 64)]
        sized = {"window_r": 0.0, "window_s": 0.0}
        return [*cells, *({"system": SCALEJOIN, "workers": n, "batch": 64, **sized} for n in workers)]

    def baseline(self, cell: Cell) -> Cell | None:
        """The original join on the same windows and threads."""
        return {**cell, "system": HANDSHAKE, "batch": 4} if cell["system"] == LOW_LATENCY else None

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Pace two and a half windows and measure what came after the first."""
        if cell["system"] == SCALEJOIN:
            return self._scalejoin(cell, context)
        windows = cell["window_r"], cell["window_s"]
        left, right = (f"{round(1e3 * seconds)} ms" for seconds in windows)
        # Rows as they are found, as in the paper.
        load = LiveLoad(cell["system"], cell["workers"], left, values=_VALUES, other_window=right, ordered=False)
        seconds = _LENGTH * max(windows)
        seen = pace(load, _RATE, 0, seconds, context.seed, rows=cell["batch"])
        # The original join finds the last pairs only when the next tuples move them on.
        return seen.summary(max(windows), seconds - model(*windows))

    def _scalejoin(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        window, seconds = (1 << 10, 0.5) if context.quick else (_SCALEJOIN_WINDOW, 5.0)
        load = LiveLoad(SCALEJOIN, cell["workers"], window, "event_time", sources=4)
        most = saturate(load, cell["batch"], seconds / 3, context.seed)
        seen = pace(load, most * _SCALEJOIN_LOAD, 0, seconds, context.seed, rows=cell["batch"])
        return {**seen.summary(seconds / 5), "most_tuples_per_s": most}

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """What the papers say beside what came out."""
        lines = []
        for row in rows:
            where = f"{row['system']}, {row['workers']} threads"
            if row["system"] == HANDSHAKE:
                most = 1e3 * model(row["window_r"], row["window_s"])
                lines.append(
                    f"{where}, windows of {row['window_r']:g} and {row['window_s']:g} s: at most {row['max_ms']:,.0f} "
                    f"ms; figure 5's model says {most:,.0f} ms: {_agreement(row['p99_ms'], 1.1 * most)}"
                )
            elif row["system"] == LOW_LATENCY:
                figure, aim = (20, 4.0) if row["batch"] == 4 else (19, 30.0)
                lines.append(
                    f"{where}, batches of {row['batch']}: {row['mean_ms']:.2f} ms on average, {row['p99_ms']:.1f} ms "
                    f"at 99 %; figure {figure} says at most {aim:g} ms: {_agreement(row['p99_ms'], aim)}"
                )
            else:
                lines.append(
                    f"{where}, at 80 % of its rate: {row['mean_ms']:.1f} ms on average, {row['p99_ms']:.1f} ms at "
                    f"99 %; figure 7b says at most 70 ms: {_agreement(row['p99_ms'], 70)}"
                )
        return lines


def _agreement(value: float, most: float) -> str:
    return "agrees" if value <= most else "exceeds it"


EXPERIMENT = LivePapers()
