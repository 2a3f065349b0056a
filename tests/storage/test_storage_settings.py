"""Settings of stores: one place, checked, handed to Hadoop, Arrow and workers, and never shown or stored."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamjoin.adhoc import Engine
from streamjoin.config.pipeline_file import read_pipeline
from streamjoin.model.errors import PipelineFileError, SetupError, SpecError
from streamjoin.service.config_file import read_config
from streamjoin.storage import settings
from streamjoin.storage.places import RemotePath, place, reached
from streamjoin.storage.settings import StorageSettings, hadoop_settings, storage_settings
from tests.stores.servers import free_port

KEYS = {"access_key": "AKIA", "secret_key": "hunter2"}
S3 = {"s3": {"endpoint": "http://127.0.0.1:9000", **KEYS}}


@pytest.fixture(autouse=True)
def _settings_of_the_environment() -> Iterator[None]:
    yield
    settings.use(None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"s3": {"secret_key": "hunter2"}}, "one of access_key and secret_key"),
        ({"s3": {"session_token": "hunter2"}}, "session_token without"),
        ({"s3": {"endpoint": "minio:9000"}}, "endpoint is 'minio:9000': it is a URL"),
        ({"s3": {"endpoint": "http://minio:9000/bucket"}}, "a URL without a path"),
        ({"s3": {"secret": "hunter2"}}, "storage.s3 takes no 'secret'; it takes: endpoint"),
        ({"s3": {"path_style": "hunter2"}}, "storage.s3.path_style is true or false"),
        ({"s3": {"access_key": ""}}, "storage.s3.access_key is a text that is not empty"),
        ({"s3": "hunter2"}, "storage.s3 is a mapping, not str"),
        ({"azure": {"account_key": "hunter2", "sas_token": "hunter2"}}, "one of account_key, sas_token"),
        ({"azure": {"client_secret": "hunter2"}}, "all three of tenant_id"),
        ({"azure": {"endpoint": "http://127.0.0.1:1"}}, "no account"),
        ({"gcs": {"anonymous": True, "credentials": "hunter2"}}, "is anonymous and has credentials"),
        ({"timeout": 0}, "timeout is 0 seconds"),
        ({"timeout": True}, "storage.timeout is a number"),
        ({"s4": {}}, "storage takes no 's4'"),
        ("hunter2", "storage is a mapping"),
    ],
)
def test_wrong_settings_are_refused_without_their_secrets(values: Any, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)) as refusal:
        storage_settings(values)
    assert "hunter2" not in str(refusal.value)


def test_settings_reach_other_processes_and_hide_their_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    given = storage_settings({**S3, "timeout": 3})
    assert "hunter2" not in repr(given)
    assert given.secrets == ("AKIA", "hunter2")
    monkeypatch.setenv(settings.VARIABLE, given.to_json())
    assert settings.current() == given
    assert settings.use(S3) != given
    assert settings.use(None) == given


def test_hadoop_and_arrow_get_the_same(tmp_path: Path) -> None:
    given = settings.use(S3)
    hadoop = hadoop_settings(given)
    path = place("s3a://bucket/a")
    assert isinstance(path, RemotePath)
    arrow = path.filesystem.__reduce__()[1][0]
    assert (hadoop["fs.s3a.endpoint"], hadoop["fs.s3a.secret.key"]) == ("http://127.0.0.1:9000", "hunter2")
    assert (arrow["endpoint_override"], arrow["scheme"], arrow["secret_key"]) == ("127.0.0.1:9000", "http", "hunter2")
    assert "hunter2" not in str(path)
    azure = storage_settings({"azure": {"account": "store", "account_key": "aGk="}})
    assert hadoop_settings(azure)["fs.azure.account.key.store.dfs.core.windows.net"] == "aGk="
    settings.use(azure)
    assert str(place("abfss://box@store.dfs.core.windows.net/a/b")) == "abfss://box@store.dfs.core.windows.net/a/b"
    assert place("abfss://box@store.dfs.core.windows.net/a/b").path == "box/a/b"  # type: ignore[union-attr]
    token = hadoop_settings(storage_settings({"azure": {"account": "store", "sas_token": "?sig=x"}}))
    assert token["fs.azure.sas.fixed.token.store.dfs.core.windows.net"] == "sig=x"
    secret = {"tenant_id": "t", "client_id": "c", "client_secret": "s"}
    oauth = hadoop_settings(storage_settings({"azure": {"account": "store", **secret}}))
    assert oauth["fs.azure.account.oauth2.client.secret.store.dfs.core.windows.net"] == "s"
    assert hadoop_settings(storage_settings({"gcs": {"credentials": "/k"}}))["fs.gs.auth.type"].startswith("SERVICE")


_STORAGE = """
[storage]
timeout = "4 seconds"
[storage.s3]
endpoint = "http://127.0.0.1:9000"
access_key = "AKIA"
secret_key = "${MY_SECRET}"
path_style = true
"""
_PIPELINE = """
checkpoint = "s3a://bucket/checkpoint"
[source.left]
format = "rate"
[source.right]
format = "rate"
[join]
on = "l.value = r.value"
window = "1 second"
time = "timestamp"
[sink]
format = "parquet"
path = "out"
"""
_SERVICE = """
[service]
engine = "embedded"
[engine]
checkpoint = "s3://bucket/checkpoint"
[streams.trades]
format = "rate"
time = "timestamp"
"""


def test_files_have_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    expected = storage_settings({"timeout": 4.0, "s3": {**S3["s3"], "path_style": True}})
    for text, read in ((_PIPELINE, read_pipeline), (_SERVICE, read_config)):
        file = tmp_path / "file.toml"
        file.write_text(text)
        assert read(file).storage is None  # type: ignore[operator]
        file.write_text(text + _STORAGE)
        assert read(file).storage == expected  # type: ignore[operator]
        for wrong, right, message in (
            ("acess_key", "access_key", r"line \d+: \[storage.s3\] takes no 'acess_key'; did you mean 'access_key'"),
            ('path_style = "x"', "path_style = true", r"line \d+: path_style is true or false"),
            ('timeout = "1 hour"', 'timeout = "4 seconds"', r"line \d+: storage.timeout is 3600 seconds"),
            ('"ftp://x"', '"http://127.0.0.1:9000"', r"line \d+: storage.s3.endpoint is 'ftp://x'"),
        ):
            file.write_text(text + _STORAGE.replace(right, wrong))
            with pytest.raises(PipelineFileError, match=message):
                read(file)  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_a_store_that_does_not_answer_is_reported(kind: str) -> None:
    """A port that accepts connections and says nothing: clients would wait for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        location = _use(kind, endpoint)
        with pytest.raises(SetupError, match=r"can't be reached: it did not answer within 0\.5 seconds.*\[storage\]"):
            reached(location)


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_an_engine_says_that_its_store_refuses(kind: str) -> None:
    location = _use(kind, f"http://127.0.0.1:{free_port()}")
    with pytest.raises(SetupError, match=r"the store of .* can't be reached") as refusal:
        Engine(checkpoint=location)
    assert "hunter2" not in str(refusal.value)


def _use(kind: str, endpoint: str) -> str:
    stores: dict[str, Any] = {
        "s3": {"endpoint": endpoint, **KEYS},
        "gcs": {"endpoint": endpoint, "anonymous": True},
        "azure": {"endpoint": endpoint, "account": "store", "account_key": "aHVudGVyMg=="},
    }
    settings.use({kind: stores[kind], "timeout": 0.5})
    return {"s3": "s3://b/a", "gcs": "gs://b/a", "azure": "abfs://b@store.dfs.core.windows.net/a"}[kind]


def test_settings_are_plain_data() -> None:
    assert storage_settings(json.loads(StorageSettings().to_json())) == StorageSettings()
