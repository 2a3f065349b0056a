"""Checkpoints in real stores: ten random kills and fifty races of two writers on each. `make stores` runs this.

Not collected by `make test`: the servers are built and fetched first, and each store takes minutes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamjoin.storage import settings
from tests.stores.killing import run_adhoc, run_join
from tests.stores.racing import race, writers
from tests.stores.servers import SECRET, Azurite, FakeGcs, Hdfs, Minio, Moto, Store

KILLS = int(os.environ.get("STREAMJOIN_KILLS", "10"))
RACES = int(os.environ.get("STREAMJOIN_RACES", "50"))
STORES: dict[str, Callable[[], Store]] = {
    "moto": Moto,
    "minio": Minio,
    "azurite-key": Azurite,
    "azurite-token": lambda: Azurite(token=True),
    "gcs": FakeGcs,
    "hdfs": Hdfs,
}


ON_SPARK = ("moto", "minio", "hdfs")
"""Those that Spark's connectors reach: Azure's speaks to no emulator, and Google's fails without credentials."""


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    started = STORES[request.param]()
    started.use()
    yield started
    settings.use(None)
    started.stop()


@pytest.fixture(scope="module", params=ON_SPARK)
def spark_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    started = STORES[request.param]()
    started.use()
    yield started
    settings.use(None)
    started.stop()


def test_races(store: Store) -> None:
    rng = random.Random(RACES)
    with writers(store.storage) as pair:
        ends = [race(pair, store.location(f"race-{number}"), rng) for number in range(RACES)]
    assert ends == ["fenced"] * RACES


def test_an_ad_hoc_engine_is_killed(store: Store, tmp_path: Path) -> None:
    checkpoint = store.location("adhoc")
    killed = run_adhoc(store, tmp_path, checkpoint, KILLS, random.Random(KILLS))
    assert killed >= min(3, KILLS)
    assert not store.keys_with(checkpoint, SECRET.encode())


def test_a_join_is_killed(spark_store: Store, tmp_path: Path) -> None:
    store, checkpoint = spark_store, spark_store.location("join")
    killed = run_join(store, tmp_path, checkpoint, KILLS, random.Random(KILLS))
    assert killed >= min(3, KILLS)
    assert not store.keys_with(checkpoint, SECRET.encode())
