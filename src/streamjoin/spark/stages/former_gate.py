"""What a gate of an earlier version left in a checkpoint, for joins that no longer have one.

Its last file has the clocks of its sources, how many rows it numbered, the marks of stored rows by position, and the
rows that were not ready. The first batch without the gate goes on from there: every range writes the marks of the rows
that it stores, and the rows that waited join the new ones. None of them is late, because they were on time.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from streamjoin.spark.stages.facts import WAITED, TaskFacts, VersionBefore
from streamjoin.spark.stages.gating import Standing
from streamjoin.spark.stages.kind_gate import resumed
from streamjoin.spark.stages.parts import Received
from streamjoin.spark.stages.route import Longest, by_range, with_ids
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog
from streamjoin.storage.manifest import Manifest
from streamjoin.storage.pieces import Block
from streamjoin.storage.ranges import SplitPoints
from streamjoin.windows.clock import NEVER


def version_before(blueprint: Blueprint, log: WindowLog, before: Manifest) -> VersionBefore:
    """The state after the version `before`, with a gate or without."""
    if before.batch < 0 or before.counts is not None:
        return VersionBefore(before.clocks, before.counts or (0, 0), blueprint.horizons(before.clocks))
    footer, _ = log.gate(before.batch, before.epoch)
    stood = Standing.from_json(footer["standing"])
    if footer.get("ended"):
        return VersionBefore((None, None), stood.counts, (NEVER, NEVER))
    # It may have passed a source that was idle: what it gave out then is final, and earlier rows are late.
    passed = None if stood.bound[0] == NEVER else stood.bound[0] + blueprint.lateness
    newest = [[passed, *(p.clock for (of, _), p in stood.sources.items() if of == side)] for side in (0, 1)]
    left, right = (max((clock for clock in own if clock is not None), default=None) for own in newest)
    clocks = (left, left) if blueprint.bound.spec.self_join else (left, right)
    if not blueprint.marked:
        return VersionBefore(clocks, stood.counts, (NEVER, NEVER))
    state = resumed(blueprint, log, before, stood.counts)
    return VersionBefore(clocks, stood.counts, state.gone, state.marks)


def held_back(blueprint: Blueprint, log: WindowLog, before: Manifest) -> list[pa.Table]:
    """The rows of each side that waited in the gate, with ids."""
    footer, piece = log.gate(before.batch, before.epoch)
    tables = []
    for side in (0,) if blueprint.bound.spec.self_join else (0, 1):
        head = [pa.field("#source", pa.string()), pa.field("#ticks", pa.int64())]
        schema = pa.schema([*head, *blueprint.schema(side)])
        blocks = () if footer.get("ended") else Block.unpacked(footer["blocks"][side])
        table = pa.Table.from_batches([piece.batch(block, schema) for block in blocks], schema=schema)
        tables.append(with_ids(table.drop_columns(["#source", "#ticks"]), WAITED, 0))
    return tables


def released(
    blueprint: Blueprint,
    tables: Sequence[pa.Table],
    received: Sequence[Received],
    points: SplitPoints,
    partition: int,
    longest: Longest,
) -> tuple[list[TaskFacts], tuple[Received, Received]]:
    """The facts about the rows that waited, and what a range received with those of them that it gets."""
    facts = [TaskFacts(side, WAITED, table.num_rows) for side, table in enumerate(tables)]
    together = []
    for role, new in enumerate(received):
        parts: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
        first = 0
        for batch in tables[min(role, len(tables) - 1)].to_batches():
            for target, copies, rows in by_range(blueprint, role, batch, points, first, longest):
                if target == partition:
                    parts[bool(copies)].append(rows)
            first += batch.num_rows
        schema = new.table.schema
        own, copied = (pa.Table.from_batches(rows, schema=schema) for rows in parts)
        table = pa.concat_tables([own, new.table.slice(0, new.owned), copied, new.table.slice(new.owned)])
        together.append(Received(table, own.num_rows + new.owned))
    return facts, (together[0], together[1])
