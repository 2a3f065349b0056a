"""A log on S3: no empty objects for directories, one request for a small file, and no file of the log replaced."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamjoin.storage import object_clients
from streamjoin.storage.log import new_epoch
from streamjoin.storage.pieces import atomic
from streamjoin.storage.places import RemotePath, place
from tests.spark.joining import CASES, blueprint, expected, in_process, pairs, stream, tables
from tests.storage.object_store import ObjectStore

BAND = CASES[0]


@pytest.fixture(scope="module")
def served() -> Iterator[ObjectStore]:
    store = ObjectStore()
    yield store
    store.stop()


@pytest.fixture
def store(served: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    for name, value in served.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STREAMJOIN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(served, "conditional", True)
    object_clients._client.cache_clear()
    return served


def _remote(location: str) -> RemotePath:
    found = place(location)
    assert isinstance(found, RemotePath)
    return found


def test_requests_of_a_log(store: ObjectStore) -> None:
    """Eight batches of two ranges: what is written is the log's files, each by one request, and few more."""
    bucket = store.empty_bucket("log")
    root = _remote(f"s3a://{bucket}/checkpoint/streamjoin/join")
    plan = blueprint(BAND, 2)
    left, right = stream(BAND, seed=3, n=160)
    epoch = new_epoch(root, plan.description)
    # The description, and the claim of this start.
    assert (store.requests["PUT"], store.requests["conditional PUT"]) == (1, 1)
    found: Counter[tuple[int, int]] = Counter()
    for i, sides in enumerate(tables(BAND, left, right, 8)):
        before = store.requests.total()
        found += pairs(in_process(plan, root, i, sides, epoch))  # type: ignore[arg-type]
        # At most 4, and 2 per partition.
        assert store.requests.total() - before <= 4 + 2 * 2
    assert found == expected(BAND, left, right)
    # The claim, two pieces for each batch, and the manifest of each but the last.
    assert (store.requests["conditional PUT"], store.requests["PUT"]) == (1 + 8 * 2 + 7, 1)
    assert (store.requests["directory marker"], store.requests["multipart"]) == (0, 0)
    assert not [key for key in store.keys(bucket) if key.endswith("/")]
    # Files are removed by one request per batch, and nothing that was written here is fetched.
    assert 0 < store.requests["POST"] <= 7
    assert store.requests["GET"] <= 8


@pytest.mark.parametrize("size", [100, 11 << 20], ids=["whole", "in parts"])
def test_the_first_of_two_writers_has_the_name(store: ObjectStore, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Both have looked and found nothing there before either writes."""
    monkeypatch.setattr(object_clients, "PART", 5 << 20)
    file = _remote(f"s3://{store.empty_bucket(f'writers-{size}')}/deep/file")
    with atomic(file, once=True) as late, atomic(file, once=True) as early:
        early.write(b"1" * size)
        late.write(b"2" * size)
    assert file.read_bytes() == b"1" * size
    assert bool(store.requests["multipart"]) == (size > 5 << 20)
    with atomic(file) as other:
        other.write(b"3")
    assert file.read_bytes() == b"3"


@pytest.mark.parametrize("lacking", ["boto3", "conditional writes"])
def test_where_no_write_is_conditional_one_looks_first(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    if lacking == "boto3":
        monkeypatch.setattr(object_clients, "_client", lambda *_: None)
    else:
        monkeypatch.setattr(store, "conditional", False)
    bucket = store.empty_bucket(lacking.replace(" ", "-"))
    file = _remote(f"s3://{bucket}/deep/down/file")
    for text in (b"one", b"two"):
        file.publish(io.BytesIO(text), once=True)
        assert file.read_bytes() == b"one"
    assert (store.requests["PUT"], store.requests["directory marker"], store.requests["multipart"]) == (1, 0, 0)
    file.unlink(missing_ok=True)
    file.parent.rmdir()
    assert f"{bucket}/deep/down/" not in store.keys(bucket)


def test_a_store_that_refuses_says_why(store: ObjectStore) -> None:
    with pytest.raises(OSError, match=r"NoSuchBucket|bucket does not exist"):
        _remote("s3://nowhere/file").publish(io.BytesIO(b"x"), once=True)
    with pytest.raises(OSError, match=r"NoSuchBucket|bucket does not exist|NO_SUCH_BUCKET"):
        _remote("s3://nowhere/file").publish(io.BytesIO(b"x"))
