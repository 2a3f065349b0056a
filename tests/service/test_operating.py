"""What operators need: tokens that change while the service runs, quotas, TLS, logs for machines."""

from __future__ import annotations

import json
import logging
import signal
import socket
import ssl
from pathlib import Path

import httpx
import pytest

from streamjoin.model.errors import PipelineFileError, SetupError
from streamjoin.service.clients import Clients, read_clients
from streamjoin.service.config import ServiceConfig
from streamjoin.service.config_file import read_config
from streamjoin.service.logs import JsonLines
from streamjoin.service.web.connections import _HANDSHAKES
from streamjoin.service.web.tls import Certificate
from tests.service.certificates import Authority
from tests.service.conftest import NEAR, Start
from tests.service.processes import LISTENING, ROOT, command, light, running

ALICE, BOB, NEW = "alice-has-a-long-token", "bob-has-a-longer-token", "alice-gets-another-token"


def tokens(directory: Path, text: str) -> Path:
    path = directory / "tokens.toml"
    # As editors and mounted secrets do it: another file under the same name.
    fresh = directory / "tokens.new"
    fresh.write_text(text)
    fresh.rename(path)
    return path


def add_keys(file: Path, lines: str) -> None:
    """Add keys to the table [service] of a file."""
    file.write_text(file.read_text().replace("\n[service]\n", f"\n[service]\n{lines}\n", 1))


def status(url: str, token: str, **options: object) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.get(f"{url}/api/v1/queries", headers=headers, timeout=120, **options).status_code  # type: ignore[arg-type]


# Tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tokens_change_while_the_service_runs(file: Path) -> None:
    tokens(file.parent, f'[alice]\ntoken = "{ALICE}"\n[bob]\ntoken = "{BOB}"\n')
    given = {"STREAMJOIN_SERVICE__PORT": "0", "STREAMJOIN_SERVICE__TOKENS": "tokens.toml"}
    with running(light(file), ROOT, **given) as service:
        url = service.until(LISTENING)[1]
        service.until("ready:")
        assert [status(url, token) for token in (ALICE, BOB, NEW)] == [200, 200, 401]
        tokens(file.parent, f'[alice]\ntoken = ["{NEW}", "{ALICE}"]\n')
        service.until("the tokens of alice, bob changed")
        assert [status(url, token) for token in (ALICE, BOB, NEW)] == [200, 401, 200]
        # A file that is wrong changes nothing, and is reported; SIGHUP has it read at once.
        tokens(file.parent, '[alice]\ntoken = "short"\n')
        service.until("at least 16 characters.*goes on with what it had")
        assert status(url, ALICE) == 200
        service.process.send_signal(signal.SIGHUP)
        service.until("SIGHUP: tokens and certificate are read again")
        service.until("goes on with what it had")
        tokens(file.parent, f'[alice]\ntoken = "{NEW}"\n')
        service.until("the tokens of alice changed")
        assert [status(url, token) for token in (ALICE, NEW)] == [401, 200]
        service.process.send_signal(signal.SIGTERM)
        assert service.ended() == 0
    assert not any(token in line for line in service.lines for token in (ALICE, BOB, NEW))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no client"),
        ("[alice]\n", r"line 1: \[alice\] has no 'token'"),
        ('[alice]\ntoken = "short"\n', "line 2: a token has at least 16"),
        (f'[alice]\ntoken = "{ALICE}"\nquery = 2\n', "line 3: .alice. takes no 'query'; did you mean 'queries'"),
        (f'[alice]\ntoken = "{ALICE}"\nqueries = -1\n', "line 3: queries = -1"),
        (f'["a b"]\ntoken = "{ALICE}"\n', "can't be a client's name"),
        (f'[alice]\ntoken = "{ALICE}"\n[bob]\ntoken = "{ALICE}"\n', "bob and alice have the same token"),
    ],
)
def test_a_wrong_file_of_tokens_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tokens(tmp_path, text)
    with pytest.raises(PipelineFileError, match=message) as error:
        read_clients(path)
    assert ALICE not in str(error.value)


@pytest.mark.slow
def test_a_service_file_names_its_tokens_and_is_checked(file: Path) -> None:
    add_keys(file, 'tokens = "tokens.toml"')
    # A file of tokens is enough for any host.
    config = read_config(file, {"STREAMJOIN_SERVICE__HOST": "0.0.0.0"})
    assert config.tokens == str(file.parent / "tokens.toml")
    command(file.parent, "serve", "--check", code=2)
    tokens(file.parent, f'[alice]\ntoken = "{ALICE}"\n')
    assert "streams trades" in command(file.parent, "serve", "--check")


def test_the_own_token_and_those_of_the_file_both_count(tmp_path: Path) -> None:
    path = tokens(tmp_path, f'[alice]\ntoken = "{ALICE}"\nqueries = 3\n')
    clients = Clients(ServiceConfig(token=BOB, tokens=str(path)))
    found = [clients.find(token.encode()) for token in (ALICE, BOB, NEW)]
    assert [(client and (client.name, client.queries)) for client in found] == [("alice", 3), ("service", None), None]
    assert not Clients(ServiceConfig()).required
    assert ALICE not in repr(found)


# Quotas ------------------------------------------------------------------------------------------------------------


def test_a_client_has_a_quota_of_queries(start: Start, tmp_path: Path) -> None:
    path = tokens(tmp_path, f'[alice]\ntoken = "{ALICE}"\nqueries = 2\n[bob]\ntoken = "{BOB}"\n')
    live = start(config=ServiceConfig(tokens=str(path)))
    alice = live.client(headers={"Authorization": f"Bearer {ALICE}"})
    bob = live.client(headers={"Authorization": f"Bearer {BOB}"})
    made = [alice.post("/api/v1/queries", json={"sql": NEAR}) for _ in range(3)]
    assert [answer.status_code for answer in made] == [201, 201, 409]
    assert made[2].json()["type"] == "urn:streamjoin:problem:quota-exceeded"
    assert made[2].json()["detail"] == "alice has 2 queries, which is its quota; drop one first"
    assert bob.post("/api/v1/queries", json={"sql": NEAR, "name": "other"}).json()["owner"] == "bob"
    assert {query["owner"] for query in alice.get("/api/v1/queries").json()["queries"]} == {"alice", "bob"}
    assert alice.delete(f"/api/v1/queries/{made[0].json()['name']}").status_code == 204
    assert alice.post("/api/v1/queries", json={"sql": NEAR}).status_code == 201


# TLS ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_service_speaks_tls_and_takes_a_new_certificate(file: Path) -> None:
    authority = Authority(file.parent)
    first = authority.sign()
    given = {
        "STREAMJOIN_SERVICE__PORT": "0",
        "STREAMJOIN_SERVICE__CERTIFICATE": "service.crt",
        "STREAMJOIN_SERVICE__KEY": "service.key",
    }
    context = ssl.create_default_context(cafile=str(authority.file))
    with running(light(file), ROOT, **given) as service:
        url = service.until(LISTENING)[1]
        assert url.startswith("https://")
        service.until("ready:")
        assert status(url, "", verify=context) == 200
        assert serial_of(url, context) == first
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/api/v1/health")
        # Clients that never end their handshakes keep nobody out, and a plain request is no way in.
        port = int(url.rpartition(":")[2])
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(_HANDSHAKES + 8)]
        assert status(url, "", verify=context) == 200
        for connection in silent:
            connection.close()
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            httpx.get(url.replace("https", "http") + "/api/v1/health")
        (file.parent / "service.crt").write_text("damaged")
        service.until("can't be used.*goes on with what it had")
        assert serial_of(url, context) == first
        second = authority.sign()
        service.until("the certificate was read again")
        # The two files do not change at one moment; a pair that does not fit is refused until both are there.
        assert serial_of(url, context) == second
        with pytest.raises(AssertionError, match=r"is not trusted .*SSL_CERT_FILE"):
            command(file.parent, "query", "list", url=url)
        service.process.send_signal(signal.SIGTERM)
        assert service.ended() == 0


def serial_of(url: str, context: ssl.SSLContext) -> int:
    host, port = url.removeprefix("https://").split(":")
    with (
        socket.create_connection((host, int(port)), timeout=120) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        certificate = secure.getpeercert()
    assert certificate is not None
    return int(str(certificate["serialNumber"]), 16)


@pytest.mark.slow
def test_the_command_line_trusts_the_authority_that_the_environment_names(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(file.parent)
    authority.sign()
    add_keys(file, 'certificate = "service.crt"\nkey = "service.key"')
    with running(light(file), ROOT, STREAMJOIN_SERVICE__PORT="0") as service:
        url = service.until(LISTENING)[1]
        service.until("ready:")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        command(file.parent, "query", "add", NEAR, "--name", "near", url=url)
        assert "near" in command(file.parent, "query", "list", url=url)


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"service.crt with the key .*service.key can't be used: No such file"):
        Certificate(str(tmp_path / "service.crt"), str(tmp_path / "service.key"))
    with pytest.raises(ValueError, match="both files"):
        ServiceConfig(certificate="service.crt")


# Logs --------------------------------------------------------------------------------------------------------------


def test_a_line_of_json_has_the_fields_that_its_message_names() -> None:
    record = logging.LogRecord(
        "streamjoin.adhoc",
        logging.ERROR,
        "loop.py",
        1,
        "query %r failed in batch %d, 100%% sure: %s",
        ("near", 7, "no"),
        None,
    )
    line = json.loads(JsonLines().format(record))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "error",
        "logger": "streamjoin.adhoc",
        "message": "query 'near' failed in batch 7, 100% sure: no",
        "query": "near",
        "batch": 7,
    }
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "x", 1, "failed", (), (ValueError, error, error.__traceback__))
    formatted = JsonLines().format(record)
    assert "\n" not in formatted
    assert json.loads(formatted)["exception"].endswith("ValueError: two\nlines")


@pytest.mark.slow
def test_a_service_logs_json_from_its_first_line(file: Path) -> None:
    add_keys(file, 'log = "json"')
    with running(["-m", "streamjoin", "serve", str(file), "--port", "0"], ROOT) as service:
        service.until("listening on")
        service.until("ready:")
        service.process.send_signal(signal.SIGTERM)
        assert service.ended() == 0
    lines = [json.loads(line) for line in service.lines]
    assert {line["level"] for line in lines} == {"notice"}
    assert lines[0]["message"].startswith("listening on http://127.0.0.1:")
    assert lines[1]["message"].startswith("engine: embedded, in this process (")
