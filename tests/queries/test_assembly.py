"""Which executor an engine has where the caller does not say: by its checkpoint, or by Spark's master."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from streamjoin.queries.core.settings import Settings
from streamjoin.queries.engine.assembly import executor_kind
from streamjoin.queries.engine.journal import FileJournal

CLUSTER = "spark://host:7077"


@pytest.mark.parametrize(
    ("master", "sharing", "stored", "given", "kind"),
    [
        (None, "cost", None, None, "embedded"),
        ("local", "cost", None, None, "spark"),
        ("local[*]", "cost", None, None, "spark"),
        ("local-cluster[2,1,1024]", "cost", None, None, "distributed"),
        (CLUSTER, "cost", None, None, "distributed"),
        (CLUSTER, "nothing", None, None, "spark"),
        (CLUSTER, "cost", None, "driver", "spark"),
        (CLUSTER, "cost", "spark", None, "spark"),
        ("local[2]", "cost", "distributed", None, "distributed"),
        ("local[2]", "cost", "spark", "distributed", "distributed"),
        # What another engine began is refused by the journal.
        ("local[2]", "cost", "embedded", None, "spark"),
    ],
)
def test_the_executor_follows_from_checkpoint_and_master(
    tmp_path: Path, master: str | None, sharing: str, stored: str | None, given: str | None, kind: str
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    if stored is not None:
        FileJournal(checkpoint, stored).close()
    session = None if master is None else SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    assert executor_kind(session, checkpoint, Settings(sharing=sharing), given) == kind  # type: ignore[arg-type]
