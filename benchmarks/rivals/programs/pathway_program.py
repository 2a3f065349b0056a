"""The joins of `benchmarks.rivals.rivals` in Pathway: reads tasks, one per line, and prints how long each took.

It runs in an environment that has Pathway and pandas and not streamjoin, so it imports neither streamjoin nor the
other benchmarks. All input is given at once (Pathway's static mode), which spares it the work per micro-batch.
"""

import json
import sys
import time

import pandas as pd
import pathway as pw


def main() -> None:
    for line in sys.stdin:
        task = json.loads(line)
        seconds = []
        for number, part in enumerate(("warm", "warm", "whole")):
            began = time.perf_counter()
            run(task, part, f"{task['out']}/{part if part == 'whole' else number}")
            seconds.append(time.perf_counter() - began)
        answer = {"start_up": seconds[1], "seconds": seconds[2], "version": pw.__version__}
        print("answer " + json.dumps(answer), flush=True)


def run(task: dict, part: str, out: str) -> None:
    pw.internals.parse_graph.G.clear()
    left, right = (pw.debug.table_from_pandas(pd.read_csv(stream[part])) for stream in task["streams"])
    for number, least in enumerate(task["least"]):
        chosen = left if least is None else left.filter(left.px >= least)
        result = JOINS[task["work"]](task, chosen, right)
        pw.io.csv.write(result, f"{out}-{number}.csv")
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


def band(work: dict, left: pw.Table, right: pw.Table) -> pw.Table:
    near = pw.temporal.interval(-work["band"], work["band"])
    pairs = pw.temporal.interval_join_inner(left, right, left.px, right.rpx, near).select(
        left.lid, right.rid, left.ts, right.rts
    )
    within = pairs.filter((pairs.ts - pairs.rts <= work["window"]) & (pairs.rts - pairs.ts <= work["window"]))
    return within.select(within.lid, within.rid)


def key(work: dict, left: pw.Table, right: pw.Table) -> pw.Table:
    near = pw.temporal.interval(-work["window"], work["window"])
    pairs = pw.temporal.interval_join_inner(left, right, left.ts, right.rts, near, left.sym == right.rsym)
    return pairs.select(left.lid, right.rid)


def asof(work: dict, left: pw.Table, right: pw.Table) -> pw.Table:
    pairs = pw.temporal.asof_join(
        left,
        right,
        left.ts,
        right.rts,
        left.sym == right.rsym,
        how=pw.JoinMode.LEFT,
        direction=pw.temporal.Direction.BACKWARD,
    ).select(left.lid, rid=pw.coalesce(right.rid, -1), age=left.ts - pw.coalesce(right.rts, -(10**12)))
    near = pairs.filter(pairs.age <= work["window"])
    return near.select(near.lid, near.rid)


JOINS = {"band": band, "key": key, "queries": key, "asof": asof}

if __name__ == "__main__":
    main()
