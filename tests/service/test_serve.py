"""Serving as a process: start, signals, failures; killed and started again, without Spark and with it."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from pathlib import Path

import httpx
import pyarrow.dataset
import pytest

from streamjoin.model.errors import SetupError
from streamjoin.service.config import ServiceConfig
from streamjoin.service.server import LONGEST_STOP, bind
from tests.conftest import QUICK_START
from tests.service.conftest import NEAR
from tests.service.events import events
from tests.service.processes import LISTENING, ROOT, Process, command, light, running

# Nearly all of them start a service.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_ends_it_well(file: Path, number: signal.Signals) -> None:
    with running(light(file), ROOT, STREAMJOIN_SERVICE__PORT="0") as service:
        url = service.until(LISTENING)[1]
        service.until("ready: streams trades, quotes, clicks")
        with httpx.Client(base_url=url, timeout=120) as client, client.stream("GET", "/api/v1/events") as answer:
            stream = events(answer)
            assert next(stream)[0] == "batch"
            made = httpx.post(f"{url}/api/v1/queries", json={"sql": NEAR, "name": "near", "sink": "files"}, timeout=120)
            assert made.json()["sink"] == f"parquet {file.parent}/streamjoin-out/near"
            service.process.send_signal(number)
            if number == signal.SIGTERM:
                # A second one, as when a whole group gets it, changes nothing.
                service.process.send_signal(number)
            assert [data for kind, data in stream if kind == "end"] == [{"reason": "stopping"}]
        assert service.ended() == 0
        assert "engine stopped" in service.lines[-1]


def test_a_batch_that_never_ends_is_told_and_does_not_hold_up_the_end(file: Path) -> None:
    assert LONGEST_STOP < 10
    file.write_text(file.read_text().replace('batch_time = "1 minute"', 'batch_time = "1 second"'))
    with running(light(file, "stuck"), ROOT, STREAMJOIN_SERVICE__PORT="0") as service:
        url = service.until(LISTENING)[1]
        service.until(r"not ready: batch \d+ has been running for \d+ s, joining")
        ready = httpx.get(f"{url}/api/v1/ready", timeout=120)
        assert (ready.status_code, ready.json()["status"]) == (503, "stuck")
        # Under load: changes that wait for the batch on all their threads, events, and half a request.
        with contextlib.ExitStack() as stack:
            for _ in range(40):
                client = stack.enter_context(contextlib.closing(socket.create_connection(address(url))))
                client.sendall(create_request())
            client.sendall(b"GET /api/v1/ev")
            assert httpx.get(f"{url}/api/v1/queries", timeout=120).status_code == 200
            service.process.send_signal(signal.SIGTERM)
            assert service.ended(60) == 0, service.lines
    assert "did not end within 1 seconds; the next start computes it again" in service.lines[-1]


def address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def create_request() -> bytes:
    body = json.dumps({"sql": NEAR}).encode()
    head = "POST /api/v1/queries HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(("mode", "told"), [("fail-at-start", "no Java"), ("fail", "the disk is full")])
def test_an_engine_that_fails_ends_it_with_the_reason(file: Path, mode: str, told: str) -> None:
    with running(light(file, mode), ROOT, STREAMJOIN_SERVICE__PORT="0") as service:
        assert service.ended() == 1
        assert service.lines[-1].startswith("error:")
        assert told in service.lines[-1]


def test_an_address_that_is_taken_is_told_before_anything_starts() -> None:
    with bind(ServiceConfig(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"can't listen on 127.0.0.1 port {port}: Address already in use; take"):
            bind(ServiceConfig(port=port))


TIMES = "SELECT t.ts AS a, q.ts AS b FROM trades t JOIN quotes q WITHIN 1 SECOND ON t.sym = q.sym"


def rows(url: str, name: str) -> int:
    return int(httpx.get(f"{url}/api/v1/queries/{name}", timeout=60).json()["rows"])


def quick_start(file: Path) -> None:
    """A small and quick Spark for tests."""
    conf = "\n".join(
        f"{key!r} = {str(value).lower() if isinstance(value, bool) else value!r}" for key, value in QUICK_START.items()
    )
    file.write_text(
        file.read_text().replace('memory = "1g"', f'memory = "512m"\nmaster = "local[2]"\n\n[spark.conf]\n{conf}')
    )


@pytest.mark.parametrize(
    "engine",
    ["embedded", pytest.param("spark", marks=(pytest.mark.spark, pytest.mark.thorough))],
)
def test_it_comes_back_after_kill_9_with_the_same_queries(file: Path, engine: str) -> None:
    quick_start(file)
    start = ["-m", "streamjoin", "serve"]
    # One word moves the file from one engine to the other.
    port = {"STREAMJOIN_SERVICE__PORT": "0", "STREAMJOIN_SERVICE__ENGINE": engine}
    with running(start, file.parent, **port) as service:
        url = started(service)
        command(file.parent, "query", "add", TIMES, "--name", "times", "--sink", "files", url=url)
        tailed = command(file.parent, "query", "tail", "times", "--limit", "3", "--json", url=url)
        assert [set(json.loads(line)) for line in tailed.splitlines()] == [{"a", "b"}] * 3
        before = json.loads(command(file.parent, "query", "show", "times", "--json", url=url))
        service.process.kill()
        assert service.ended() == -signal.SIGKILL
    with running(start, file.parent, **port) as service:
        url = started(service)
        after = json.loads(command(file.parent, "query", "show", "times", "--json", url=url))
        assert {key: after[key] for key in ("sql", "created_batch", "created_at", "state")} == {
            key: before[key] for key in ("sql", "created_batch", "created_at", "state")
        }
        assert after["rows"] >= before["rows"]
        # More than the tail shows came since: it follows the events until then.
        command(file.parent, "query", "tail", "times", "-n", "0", "--limit", "3", url=url)
        service.process.send_signal(signal.SIGTERM)
        assert service.ended() == 0, service.lines
        assert [line for line in service.lines if "Traceback" in line] == []
    written = pyarrow.dataset.dataset(str(file.parent / "streamjoin-out" / "times")).to_table().to_pylist()
    assert len({(row["a"], row["b"]) for row in written}) == len(written) > after["rows"]


def started(service: Process) -> str:
    url = service.until(LISTENING)[1]
    service.until("ready: streams trades, quotes, aircraft")
    assert httpx.get(f"{url}/api/v1/ready", timeout=60).json()["status"] == "ready"
    return url
