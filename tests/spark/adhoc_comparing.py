"""What an ad-hoc engine of `adhoc_driver` wrote, against the oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from streamjoin.adhoc import Settings, Stream
from streamjoin.queries.core.changes import Create
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.engine.journal import FileJournal
from streamjoin.queries.engine.stored import EngineChange
from streamjoin.queries.language.plan import Query
from streamjoin.queries.language.sql import parse
from tests.oracles.adhoc_meaning import arrivals_of, meaning_of
from tests.oracles.adhoc_oracle import Life, gate_order, rows
from tests.queries.core_cases import rows_of
from tests.queries.looped import read_back
from tests.spark.adhoc_driver import QUERIES, STEPS, tuples
from tests.spark.adhoc_streams import SCHEMA


def compare(directory: Path, executor: str, checkpoint: str | None = None) -> None:
    """What every query wrote, against the oracle, by what the log says of changes and arrivals."""
    journal = FileJournal(checkpoint or str(directory / "checkpoint"), executor)
    try:
        changes = [
            EngineChange.unpacked(body).record
            for number in journal.numbers("changes")
            for body in journal.read("changes", number)["records"]
        ]
        batch_of: dict[tuple[str, int], int] = {}
        for batch in journal.numbers("batches"):
            for stream, position in journal.read("batches", batch)["consumed"].items():
                number = position["files"] - 1 if executor == "embedded" else position
                batch_of.setdefault((stream, number), batch)
    finally:
        journal.close()
    made = [f"{record.action} {record.name}" for record in changes]
    assert set((directory / "acknowledged").read_text().splitlines()) <= set(made)
    assert len(made) == len(set(made)) == 2 + STEPS + (STEPS - 5)
    arrivals = gate_order(
        [a for s in ("l", "r") for n in range(STEPS) for a in arrivals_of(s, tuples(s, n), "ts", batch_of[s, n])]
    )
    streams = [Stream(name, SCHEMA, "ts") for name in ("l", "r")]
    for number in range(STEPS):
        plan = parse(QUERIES[number % len(QUERIES)], streams)
        when = {record.action: record.batch for record in changes if record.name == f"q{number}"}
        if plan.kind_steps:
            wanted = in_one_process(plan, when["create"], batch_of)
        else:
            wanted = rows(arrivals, meaning_of(plan), Life(when["create"], when.get("drop")))
        found = Counter(read_back(directory / "out" / f"q{number}", plan.schema.names))
        assert found == wanted, f"q{number}"
        assert number > STEPS - 3 or sum(wanted.values()) > 5


def in_one_process(plan: Query, created: int, batch_of: Mapping[tuple[str, int], int]) -> Counter[tuple[Any, ...]]:
    """The rows of a query with other than inner joins, which one core gives that nobody kills."""
    core = Shared([Stream(name, SCHEMA, "ts") for name in ("l", "r")], Settings(lateness="1 minute"))
    core.apply([Create("q", plan)])
    found: Counter[tuple[Any, ...]] = Counter()
    for batch in sorted(number for number in set(batch_of.values()) if number >= created):
        here = [key for key, number in sorted(batch_of.items()) if number == batch and key[1] < STEPS]
        tables = {name: pa.concat_tables([tuples(s, n) for s, n in here if s == name]) for name, _ in here}
        found += rows_of(core.process(batch, tables)["q"])
    return found
