"""Checkpoints on S3: a join, and an ad-hoc engine that is killed and started again; joins are in `make thorough`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamjoin.storage import settings
from tests.seeds import THOROUGH
from tests.stores.killing import run_adhoc, run_join
from tests.stores.servers import SECRET, Moto


@pytest.fixture(scope="module")
def moto() -> Iterator[Moto]:
    store = Moto()
    store.use()
    yield store
    settings.use(None)
    store.stop()


@pytest.mark.spark
@pytest.mark.slow
def test_a_join_with_its_checkpoint_on_s3(moto: Moto, tmp_path: Path) -> None:
    checkpoint = moto.location("join")
    kills = 1 if THOROUGH else 0
    assert run_join(moto, tmp_path, checkpoint, kills, random.Random(2)) == kills
    assert not moto.keys_with(checkpoint, SECRET.encode())
    assert moto.server.requests["multipart"] == 0


@pytest.mark.slow
def test_an_ad_hoc_engine_with_its_checkpoint_on_s3(moto: Moto, tmp_path: Path) -> None:
    checkpoint = moto.location("adhoc")
    moto.server.requests.clear()
    kills = 2 if THOROUGH else 1
    assert run_adhoc(moto, tmp_path, checkpoint, kills, random.Random(1)) == kills
    assert not moto.keys_with(checkpoint, SECRET.encode())
    assert (moto.server.requests["directory marker"], moto.server.requests["multipart"]) == (0, 0)
