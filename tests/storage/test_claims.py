"""One writer: of several starts on one checkpoint one counts, at the same millisecond and after a pause."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamjoin.model.errors import SetupError, StateError
from streamjoin.queries.core.arrivals import Arrived, Clocks
from streamjoin.queries.engine.journal import FileJournal
from streamjoin.storage import settings
from streamjoin.storage.claims import claim, claims, refuse_superseded
from streamjoin.storage.log import WindowLog, new_epoch
from streamjoin.storage.places import create_file, place
from tests.seeds import THOROUGH
from tests.spark.joining import CASES, blueprint, in_process, stream, tables
from tests.stores.racing import race, writers
from tests.stores.servers import Moto

BAND = CASES[0]


@pytest.fixture(scope="module")
def moto() -> Iterator[Moto]:
    store = Moto()
    yield store
    store.stop()


@pytest.fixture(params=["disk", "S3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A new directory on the local disk, and one in a store."""
    if request.param == "disk":
        yield str(tmp_path / "checkpoint")
        return
    store: Moto = request.getfixturevalue("moto")
    store.use()
    yield store.location(f"claims-{tmp_path.name}")
    settings.use(None)


def test_starts_of_one_millisecond_have_an_order(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    root = place(location)
    numbers: list[int] = []
    barrier = threading.Barrier(6)

    def begin() -> None:
        barrier.wait()
        numbers.append(claim(root))

    threads = [threading.Thread(target=begin) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == sorted(claims(root))
    assert len(set(numbers)) == 6
    refuse_superseded(root, max(numbers))
    for number in sorted(numbers)[:-1]:
        with pytest.raises(StateError, match="another start took over"):
            refuse_superseded(root, number)


def test_a_batch_of_an_older_start_fails_before_it_writes(location: str) -> None:
    root = place(location)
    plan = blueprint(BAND, 2)
    batches = tables(BAND, *stream(BAND, seed=1, n=40), 2)
    older = new_epoch(root, plan.description)
    in_process(plan, root, 0, batches[0], older)  # type: ignore[arg-type]
    newer = new_epoch(root, plan.description)
    with pytest.raises(StateError, match="another start took over"):
        in_process(plan, root, 1, batches[1], older)  # type: ignore[arg-type]
    assert WindowLog(root, older, plan).pieces(1, older) == []
    assert in_process(plan, root, 1, batches[1], newer)  # type: ignore[arg-type]


@pytest.mark.slow
def test_races_for_a_checkpoint(location: str) -> None:
    """Processes that open it at once, or of which the first is paused: nothing acknowledged is lost or mixed."""
    storage = settings.current()
    given = {} if storage == settings.StorageSettings() else {"s3": vars(storage.s3)}
    rng = random.Random(7)
    with writers(given) as pair:
        ends = {race(pair, f"{location}-{number}", rng) for number in range(4 if THOROUGH else 2)}
    # A lock on the disk refuses the second one, and a claim in a store fences the first.
    assert ends == {"fenced" if given else "refused"}


def test_what_an_older_engine_writes_after_a_newer_one_has_read_is_void(moto: Moto) -> None:
    moto.use()
    try:
        location = moto.location("void")
        older = FileJournal(location, "embedded")
        older.write_changes(1, 0, [{"by": "older"}])
        older.write_input(_batch(0), {}, {}, 1)
        newer = FileJournal(location, "embedded")
        assert newer.numbers("batches") == [0]
        with pytest.raises(StateError, match="another start took over"):
            older.write_changes(2, 1, [{"by": "older"}])
        with pytest.raises(StateError, match="another start took over"):
            older.write_input(_batch(1), {}, {}, 1)
        assert newer.numbers("changes") == [1]
        newer.write_changes(2, 1, [{"by": "newer"}])
        newer.write_input(_batch(newer.batches_skipped + 1), {}, {}, 2)
        third = FileJournal(location, "embedded")
        assert [third.read("changes", n)["records"][0]["by"] for n in third.numbers("changes")] == ["older", "newer"]
        assert third.numbers("batches") == [0, newer.batches_skipped + 1]
        for journal in (older, newer, third):
            journal.close()
    finally:
        settings.use(None)


def test_a_slow_start_leaves_what_a_newer_one_writes(moto: Moto) -> None:
    """The newer one takes over while the older one starts, and writes whenever that has listed the changes."""
    moto.use()
    location = moto.location("slow")
    journals: list[FileJournal] = []
    written: list[int] = []

    class Slow(FileJournal):
        def _claimed(self, kind: str) -> list[tuple[int, int, str]]:
            records = super()._claimed(kind)
            if kind == "changes":
                if not journals:
                    journals.append(FileJournal(location, "embedded"))
                written.append(len(written) + 1)
                journals[0].write_changes(written[-1], 0, [{"serial": written[-1]}])
            return records

    try:
        older = Slow(location, "embedded")
        assert journals[0].numbers("changes") == written
        assert len(written) >= 2
        for journal in (older, *journals):
            journal.close()
    finally:
        settings.use(None)


def _batch(number: int) -> Arrived:
    return Arrived({}, {}, {}, Clocks.start({}), number)


def test_a_store_without_conditional_writes_is_refused_unless_it_is_allowed(
    moto: Moto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moto.server, "conditional", False)
    try:
        moto.use()
        file = place(moto.location("weak/claim"))
        with pytest.raises(SetupError, match=r"has no conditional writes.*conditional_writes = false"):
            create_file(file, b"x")
        settings.use({**moto.storage, "conditional_writes": False})
        assert create_file(place(moto.location("weak/claim")), b"x")
        assert not create_file(place(moto.location("weak/claim")), b"y")
    finally:
        settings.use(None)
