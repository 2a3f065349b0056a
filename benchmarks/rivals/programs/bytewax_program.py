"""The joins of `benchmarks.rivals.rivals` in Bytewax: reads tasks, one per line, and prints how long each took.

Bytewax has no join with a condition on two times, so the joins are the stateful steps that a user would write: lists in
order of time, or of price, searched with `bisect`. A band has no key, so all of it is the state of one key.
"""

import bisect
import csv
import json
import sys
import time
from collections import deque
from importlib.metadata import version

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import TestingSource, run_main


class Rows(DynamicSink):
    def __init__(self, rows: list) -> None:
        self.rows = rows

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition:
        return RowsPart(self.rows)


class RowsPart(StatelessSinkPartition):
    def __init__(self, rows: list) -> None:
        self.rows = rows

    def write_batch(self, items: list) -> None:
        self.rows.extend(items)


def main() -> None:
    for line in sys.stdin:
        task = json.loads(line)
        seconds = []
        for part in ("warm", "warm", "whole"):
            events = read(task, part)
            began = time.perf_counter()
            outputs = run(task, events)
            seconds.append(time.perf_counter() - began)
        for number, rows in enumerate(outputs):
            with open(f"{task['out']}/whole-{number}.csv", "w") as file:
                writer = csv.writer(file)
                writer.writerow(("lid", "rid"))
                writer.writerows(rows)
        answer = {"start_up": seconds[1], "seconds": seconds[2], "version": version("bytewax")}
        print("answer " + json.dumps(answer), flush=True)


def read(task: dict, part: str) -> list:
    """The events of both sides by time: (side, id, time, key, price)."""
    events = []
    for side, stream in enumerate(task["streams"]):
        with open(stream[part]) as file:
            lines = csv.reader(file)
            next(lines)
            events += [(side, *map(int, line)) for line in lines]
    return sorted(events, key=lambda event: event[2])


def run(work: dict, events: list) -> list:
    flow = Dataflow("rival")
    stream = op.input("in", flow, TestingSource(events, batch_size=1000))
    outputs = []
    for number, least in enumerate(work["least"]):
        chosen = stream
        if least is not None:
            chosen = op.filter(f"choose{number}", stream, lambda event, least=least: event[0] == 1 or event[4] >= least)
        name, logic = ("all", Band) if work["work"] == "band" else (None, {"asof": AsOf}.get(work["work"], Key))
        keyed = op.key_on(f"key{number}", chosen, lambda event, name=name: name or str(event[3]))
        joined = op.stateful_flat_map(f"join{number}", keyed, step(logic, work))
        outputs.append([])
        op.output(f"out{number}", op.key_rm(f"rid{number}", joined), Rows(outputs[-1]))
    run_main(flow)
    return outputs


def step(logic: type, work: dict):
    def mapped(state, event):
        state = state or logic(work)
        return state, state.pairs(event)

    return mapped


class Key:
    """Tuples of the last `window` of both sides, by time."""

    def __init__(self, work: dict) -> None:
        self.window = work["window"]
        self.sides = deque(), deque()

    def pairs(self, event: tuple) -> list:
        side, number, when = event[:3]
        other = self.sides[1 - side]
        while other and other[0][1] < when - self.window:
            other.popleft()
        self.sides[side].append((number, when))
        return [(number, met) if side == 0 else (met, number) for met, _ in other]


class Band:
    """Tuples by price, and in order of time to forget them."""

    def __init__(self, work: dict) -> None:
        self.window, self.band = work["window"], work["band"]
        self.sorted = [], []
        self.queue = deque(), deque()

    def pairs(self, event: tuple) -> list:
        side, number, when, _, price = event
        other, queue = self.sorted[1 - side], self.queue[1 - side]
        while queue and queue[0][0] < when - self.window:
            _, entry = queue.popleft()
            del other[bisect.bisect_left(other, entry)]
        bisect.insort(self.sorted[side], (price, number))
        self.queue[side].append((when, (price, number)))
        begin = bisect.bisect_left(other, (price - self.band, -1))
        end = bisect.bisect_right(other, (price + self.band, sys.maxsize))
        return [(number, met) if side == 0 else (met, number) for _, met in other[begin:end]]


class AsOf:
    """The newest right tuple."""

    def __init__(self, work: dict) -> None:
        self.window = work["window"]
        self.newest = None

    def pairs(self, event: tuple) -> list:
        side, number, when = event[:3]
        if side == 1:
            self.newest = number, when
            return []
        near = self.newest is not None and when - self.newest[1] <= self.window
        return [(number, self.newest[0])] if near else []


if __name__ == "__main__":
    main()
