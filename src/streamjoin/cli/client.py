"""The command line's client of a service: JSON over HTTP and server-sent events, with the standard library.

Proxies of the environment are not used. The token is sent only in a header.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

import typer

from streamjoin.model.errors import ServiceError

DEFAULT_URL = "http://127.0.0.1:8765"
_STARTING = "urn:streamjoin:problem:starting"
_PAUSE = 0.25


@dataclass(frozen=True)
class ServerEvent:
    """A server-sent event."""

    name: str
    data: Any
    id: str | None = None


@dataclass(frozen=True)
class Client:
    """One service."""

    url: str = DEFAULT_URL
    token: str | None = field(default=None, repr=False)
    timeout: float = 60.0
    patience: float = 120.0
    """Seconds to wait for an engine that is starting; Spark takes a while."""

    def get(self, path: str, **params: object) -> Any:
        """The JSON at a path."""
        return self._json("GET", path, None, params)

    def post(self, path: str, body: object = None, **params: object) -> Any:
        """The response to a POST of a body."""
        return self._json("POST", path, body, params)

    def delete(self, path: str) -> None:
        """Send a DELETE to a path."""
        self._json("DELETE", path, None, {})

    def page(self, path: str, **params: object) -> tuple[bytes, dict[str, str]]:
        """The file at a path, and what its headers `Streamjoin-...` say, by the lower-case rest of their names."""
        connection, response = self._ask("GET", path, None, params, self.timeout)
        with connection, response:
            content, headers = self._read(response), response.getheaders()
        prefix = "streamjoin-"
        names = {name.lower(): value for name, value in headers}
        return content, {name.removeprefix(prefix): names[name] for name in names if name.startswith(prefix)}

    def text(self, path: str, **params: object) -> str:
        """The text at a path."""
        connection, response = self._ask("GET", path, None, params, self.timeout)
        with connection, response:
            return self._read(response).decode("utf-8", "replace")

    def events(self, path: str, **params: object) -> Iterator[ServerEvent]:
        """Events until the service ends them, without heartbeats.

        Raises:
            ServiceError: the service can't be reached, refuses, or the connection is lost.
        """
        # Heartbeats come every 15 seconds: after three missing ones the connection is lost.
        connection, response = self._ask("GET", path, None, params, 45.0)
        with connection, response:
            name, number = "message", None
            data: list[str] = []
            while line := self._line(response):
                text = line.decode("utf-8").rstrip("\r\n")
                if not text and data:
                    yield ServerEvent(name, json.loads("\n".join(data)), number)
                    name, number, data = "message", None, []
                key, _, value = text.partition(": ")
                if key == "event":
                    name = value
                elif key == "id":
                    number = value
                elif key == "data":
                    data.append(value)

    def _line(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.readline()
        except (OSError, http.client.HTTPException) as error:
            raise ServiceError(f"the connection to {self.url} was lost: {_told(error)}") from error

    def _json(self, method: str, path: str, body: object, params: dict[str, object]) -> Any:
        connection, response = self._ask(method, path, body, params, self.timeout)
        with connection, response:
            raw = self._read(response)
        try:
            return json.loads(raw) if raw else None
        except ValueError as error:
            raise ServiceError(f"{self.url} answered, but is not a streamjoin service", response.status) from error

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServiceError(f"the connection to {self.url} was lost: {_told(error)}") from error

    def _ask(
        self, method: str, path: str, body: object, params: dict[str, object], timeout: float
    ) -> tuple[_Connection, http.client.HTTPResponse]:
        """Send a request, and repeat it while the engine is starting."""
        until = monotonic() + self.patience
        has_reported = False
        while True:
            try:
                return self._ask_once(method, path, body, params, timeout)
            except ServiceError as error:
                if error.problem.get("type") != _STARTING or monotonic() >= until:
                    raise
            if not has_reported:
                typer.echo("the engine is starting ...", err=True)
                has_reported = True
            sleep(_PAUSE)

    def _ask_once(
        self, method: str, path: str, body: object, params: dict[str, object], timeout: float
    ) -> tuple[_Connection, http.client.HTTPResponse]:
        connection = self._connection(timeout)
        query = {key: value for key, value in params.items() if value is not None}
        target = f"/api/v1/{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        headers = {"Accept": "*/*"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        raw = None
        if body is not None:
            raw = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.http.request(method, target, raw, headers)
            response = connection.http.getresponse()
        except ssl.SSLCertVerificationError as error:
            connection.http.close()
            raise ServiceError(
                f"the certificate of {self.url} is not trusted ({error.verify_message}): "
                "name the file of its authority with SSL_CERT_FILE"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            connection.http.close()
            raise ServiceError(
                f"no service answers at {self.url} ({_told(error)}): start one with `streamjoin serve`, "
                "or name another with --url or STREAMJOIN_URL"
            ) from error
        if response.status >= 400:
            with connection, response:
                raise self._refusal(response, body)
        return connection, response

    def _refusal(self, response: http.client.HTTPResponse, body: object) -> ServiceError:
        try:
            problem = json.loads(self._read(response))
        except ValueError:
            problem = {}
        if not isinstance(problem, dict):
            problem = {}
        detail = problem.get("detail") or f"{self.url} answered {response.status} {response.reason}"
        if response.status == 401:
            detail = "the service requires a token: set STREAMJOIN_TOKEN, or with --token"
        sql = body.get("sql") if isinstance(body, dict) else None
        return ServiceError(str(detail), response.status, {**problem, "sql": sql})

    def _connection(self, timeout: float) -> _Connection:
        parts = urllib.parse.urlsplit(self.url if "://" in self.url else f"http://{self.url}")
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if host is None or parts.scheme not in ("http", "https"):
            raise ServiceError(f"{self.url!r} is not the address of a service: write http://host:port", 422)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return _Connection(kind(host, port, timeout=timeout))


@dataclass(frozen=True)
class _Connection:
    http: http.client.HTTPConnection

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()


def _told(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
