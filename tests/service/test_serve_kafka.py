"""`streamjoin serve` between Kafka topics: killed and started again, every row there, no secret anywhere."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import QUICK_START
from tests.service.processes import LISTENING, Process, running
from tests.spark.kafka_broker import Broker

pytestmark = pytest.mark.slow

SECRET = "hunter2-and-more"
JAAS = "org.example.PlainLoginModule required username=me password=${KAFKA_PASSWORD};"
FILE = """\
[service]
port = 0
engine = "{engine}"
[engine]
checkpoint = "data"
[streams.trades]
format = "kafka"
servers = "{servers}"
topic = "trades-{engine}"
schema = "ts TIMESTAMP, sym STRING, id BIGINT"
time = "ts"
lateness = "1 hour"
options."{option}" = "{secret}"
[streams.quotes]
format = "kafka"
servers = "{servers}"
topic = "quotes-{engine}"
decode = "csv"
schema = "ts TIMESTAMP, sym STRING, id BIGINT"
time = "ts"
lateness = "1 hour"
[sinks.topic]
format = "kafka"
servers = "{servers}"
topic = "{engine}-{{query}}"
key = "t"
options."{option}" = "{secret}"
[spark]
master = "local[2]"
memory = "512m"
[spark.conf]
"""
SQL = "SELECT t.id AS t, q.id AS q FROM trades t JOIN quotes q WITHIN 5 SECONDS ON t.sym = q.sym"


SECRETS = {"spark": ("kafka.sasl.jaas.config", JAAS), "embedded": ("kafka.sasl.password", "${KAFKA_PASSWORD}")}
"""Where each engine's client takes a password; the broker asks for none."""


def write_file(directory: Path, servers: str, engine: str) -> None:
    quick = "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in QUICK_START.items())
    option, secret = SECRETS[engine]
    text = FILE.format(servers=servers, engine=engine, option=option, secret=secret)
    (directory / "streamjoin.toml").write_text(text + quick)


def send(broker: Broker, engine: str, ids: range) -> None:
    """A trade and a quote a second, and of each a value that is none."""
    moments = [f"2026-01-01T00:{n // 60:02}:{n % 60:02}Z" for n in ids]
    trades = [json.dumps({"ts": at, "sym": "AB"[n % 2], "id": n}) for n, at in zip(ids, moments, strict=True)]
    quotes = [f"{at},{'AB'[n % 2]},{n}" for n, at in zip(ids, moments, strict=True)]
    broker.send(f"trades-{engine}", [*trades, "not json", '{"id": "x"}'])
    broker.send(f"quotes-{engine}", [*quotes, "2026-01-01T00:00:00Z,A,many"])


def started(service: Process) -> httpx.Client:
    url = service.until(LISTENING)[1]
    service.until("ready: streams trades, quotes")
    return httpx.Client(base_url=f"{url}/api/v1", timeout=60)


def rows_until(client: httpx.Client, rows: int) -> dict[str, Any]:
    """The query's record once it gave so many rows; the events say when to look."""
    with client.stream("GET", "/events") as events:
        # What came before the first event is looked at too.
        for _ in itertools.chain([""], events.iter_lines()):
            found: dict[str, Any] = client.get("/queries/near").json()
            assert found["state"] == "running", found
            if found["rows"] >= rows:
                return found
    raise AssertionError("the events ended")


def expected(n: int) -> set[tuple[int, int]]:
    return {(t, q) for t in range(n) for q in range(n) if abs(t - q) <= 5 and (t - q) % 2 == 0}


def shown(client: httpx.Client) -> str:
    """Everything that the service tells."""
    paths = ("info", "streams", "queries", "queries/near", "plan", "changelog", "history", "streams/trades/malformed")
    return "".join(client.get(path).text for path in (*paths, "../../metrics"))


@pytest.mark.parametrize("engine", ["embedded", pytest.param("spark", marks=(pytest.mark.spark, pytest.mark.thorough))])
def test_killed_and_started_again_between_topics(broker: Broker, tmp_path: Path, engine: str) -> None:
    broker.create(f"trades-{engine}", f"quotes-{engine}", f"{engine}-near")
    write_file(tmp_path, broker.address, engine)
    command, secret = ["-m", "streamjoin", "serve"], {"KAFKA_PASSWORD": SECRET}
    with running(command, tmp_path, **secret) as service, started(service) as client:
        made = client.post("/queries", json={"sql": SQL, "name": "near", "sink": "topic"})
        assert made.json()["sink"] == f"kafka {engine}-near at {broker.address}"
        send(broker, engine, range(40))
        rows_until(client, len(expected(40)))
        told = shown(client)
        send(broker, engine, range(40, 60))
        service.process.kill()
        service.ended()
    said = service.lines
    with running(command, tmp_path, **secret) as service, started(service) as client:
        send(broker, engine, range(60, 80))
        rows_until(client, len(expected(80)))
        counts = {stream["name"]: stream["malformed"] for stream in client.get("/streams").json()["streams"]}
        assert counts == {"trades": 6, "quotes": 3}
        bad = client.get("/streams/trades/malformed").json()
        values = [dict(zip((name for name, _ in bad["columns"]), row, strict=True)) for row in bad["rows"]]
        assert Counter(row["value"] for row in values) == {"not json": 3, '{"id": "x"}': 3}
        assert {row["topic"] for row in values} == {f"trades-{engine}"}
        told += shown(client)
        service.process.terminate()
        assert service.ended() == 0, service.lines
    received = Counter((row["t"], row["q"]) for row in broker.received(f"{engine}-near"))
    assert set(received) == expected(80)
    # A Kafka sink has each row at least once: the batch that was cut off may come a second time, with its headers.
    assert max(received.values()) <= 2
    example = Path(__file__).parents[2] / "examples" / "kafka_once.py"
    once = subprocess.run(
        [sys.executable, str(example), broker.address, f"{engine}-near"], capture_output=True, text=True, check=True
    )
    rows = [json.loads(line) for line in once.stdout.splitlines()]
    assert Counter((row["t"], row["q"]) for row in rows) == Counter(expected(80))
    kept = b"".join(file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file())
    assert SECRET.encode() not in kept
    assert SECRET not in told + "".join([*said, *service.lines])
