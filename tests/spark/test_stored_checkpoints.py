"""Checkpoints on S3, in the suite: a join and an ad-hoc engine, each killed once and started again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamjoin.storage import settings
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
    assert run_join(moto, tmp_path, checkpoint, 1, random.Random(2)) == 1
    assert not moto.keys_with(checkpoint, SECRET.encode())
    assert moto.server.requests["multipart"] == 0


@pytest.mark.slow
def test_an_ad_hoc_engine_with_its_checkpoint_on_s3(moto: Moto, tmp_path: Path) -> None:
    checkpoint = moto.location("adhoc")
    moto.server.requests.clear()
    assert run_adhoc(moto, tmp_path, checkpoint, 2, random.Random(1)) == 2
    assert not moto.keys_with(checkpoint, SECRET.encode())
    assert (moto.server.requests["directory marker"], moto.server.requests["multipart"]) == (0, 0)
