"""Who may call the service: the token of its file, and the clients of a file of tokens that is read while it runs.

A file of tokens has a table for each client, with one token or several, so that a new one can be handed out before the
old one goes. It is read again when it changes. The invariants: a file that can't be read, or is wrong, leaves the
clients as they were and is reported once; tokens are compared in constant time and appear in no message or `repr`.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

from streamjoin.config.table import ConfigTable, read_toml
from streamjoin.model.errors import PipelineFileError
from streamjoin.service.config import ServiceConfig, check_token
from streamjoin.service.web.tls import file_stamp

_EXAMPLE: Final = 'token = "${ALICE_TOKEN}"'


@dataclass(frozen=True)
class ApiClient:
    """A client: its name, digests of its tokens, and its quota of queries (None for no quota of its own)."""

    name: str
    digests: tuple[bytes, ...] = field(repr=False)
    queries: int | None = None


def _digest(token: str) -> bytes:
    return sha256(token.encode("latin-1")).digest()


def read_clients(file: Path) -> tuple[ApiClient, ...]:
    """The clients of a file of tokens.

    Raises:
        PipelineFileError: it can't be read, or something in it is wrong; the message names the line.
    """
    top = read_toml(file)
    clients = []
    for name in top.values:
        if not re.fullmatch(r"[A-Za-z_][\w.-]{0,63}", name, re.ASCII):
            top.fail(f"{name!r} can't be a client's name: letters, digits, '_', '.' and '-', a letter first", name)
        table = top.table(name)
        if table is None:
            top.missing(name, f"[{name}] with {_EXAMPLE}")
        clients.append(_client(name, table))
    known: dict[bytes, str] = {}
    for client in clients:
        for digest in client.digests:
            if known.setdefault(digest, client.name) != client.name:
                top.fail(f"{client.name} and {known[digest]} have the same token: give each its own", client.name)
    if not clients:
        raise PipelineFileError(f"{file} has no client: add [alice] with {_EXAMPLE}")
    return tuple(clients)


def _client(name: str, table: ConfigTable) -> ApiClient:
    table.only("token", "queries")
    tokens = [table.expanded(token, "token") for token in table.texts("token", _EXAMPLE)]
    if not tokens:
        table.missing("token", _EXAMPLE)
    for token in tokens:
        reason = check_token(token)
        if reason is not None:
            table.fail(reason, "token")
    queries = table.get("queries", (int,), example="queries = 20")
    if queries is not None and queries < 0:
        table.fail(f"queries = {queries}: a quota is a number from 0", "queries")
    table.finish()
    return ApiClient(name, tuple(map(_digest, tokens)), queries)


class Clients:
    """The clients of a service as they are now."""

    def __init__(self, config: ServiceConfig) -> None:
        """Raises PipelineFileError if the file of tokens is wrong."""
        self._own = () if config.token is None else (ApiClient("service", (_digest(config.token),)),)
        self._file = None if config.tokens is None else Path(config.tokens)
        self._seen = self._stamp()
        self._clients = (*self._own, *(read_clients(self._file) if self._file is not None else ()))

    @property
    def required(self) -> bool:
        """Whether a request needs a token."""
        return bool(self._own) or self._file is not None

    def find(self, token: bytes) -> ApiClient | None:
        """The client that has a token. The time it takes depends on the number of tokens alone."""
        given = sha256(token).digest()
        found = None
        for client in self._clients:
            for digest in client.digests:
                if hmac.compare_digest(given, digest):
                    found = client
        return found

    def refresh(self, *, now: bool = False) -> str | None:
        """Read the file again if it has changed, or `now`; returns what to report.

        Raises:
            PipelineFileError: it can't be read or is wrong; the clients stay as they were.
        """
        stamp = self._stamp()
        if self._file is None or (stamp == self._seen and not now):
            return None
        self._seen = stamp
        before = {client.name: client for client in self._clients}
        self._clients = (*self._own, *read_clients(self._file))
        after = {client.name: client for client in self._clients}
        changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        return f"the tokens of {', '.join(sorted(changed))} changed" if changed else None

    def _stamp(self) -> tuple[int, ...] | None:
        return None if self._file is None else file_stamp(self._file)
