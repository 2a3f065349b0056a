"""TLS: the service's certificate, read again when its files change, and the handshake of a connection.

asyncio would count a connection only after its handshake, and a client that never finishes one would hold a file
descriptor that the engine needs. So a connection begins as a plain one, is counted, and has as long for its handshake
as for a request. The invariant: files that can't be used leave the certificate in force as it was.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from typing import Any, cast

from streamjoin.model.errors import SetupError


class Certificate:
    """The certificate of the service, and the context that handshakes use."""

    def __init__(self, certificate: str, key: str) -> None:
        """Raises SetupError if the files can't be used."""
        self._files = certificate, key
        self._seen = self._stamps()
        self.context = self._loaded()

    def refresh(self, *, now: bool = False) -> str | None:
        """Read the files again if they have changed, or `now`; returns what to report.

        Raises:
            SetupError: they can't be used; the certificate stays as it was.
        """
        stamps = self._stamps()
        if stamps == self._seen and not now:
            return None
        self._seen = stamps
        # A context that fails to load may have changed halfway, so another one is tried first.
        self._loaded()
        self.context.load_cert_chain(*self._files)
        return "the certificate was read again"

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(*self._files)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
            raise SetupError(
                f"the certificate {self._files[0]} with the key {self._files[1]} can't be used: {reason}; "
                "both are PEM files, and the key has no password"
            ) from error
        return context

    def _stamps(self) -> tuple[tuple[int, ...], ...]:
        return tuple(map(file_stamp, self._files))


def file_stamp(file: str | os.PathLike[str]) -> tuple[int, ...]:
    """What tells two versions of a file apart, also where it is a link that changes; empty if there is none."""
    try:
        status = os.stat(file)  # noqa: PTH116 - its fields are compared
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


class TlsHandshake(asyncio.Protocol):
    """A connection until its handshake has ended; then `begin` makes the protocol that goes on with it."""

    def __init__(
        self, context: ssl.SSLContext, seconds: float, begin: Callable[[], Any], ended: Callable[[TlsHandshake], None]
    ) -> None:
        self._context, self._seconds, self._begin, self._ended = context, seconds, begin, ended
        self._early: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._task = asyncio.get_running_loop().create_task(self._shake(transport))

    def data_received(self, data: bytes) -> None:
        """A part of the first request, which came together with the end of the handshake."""
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the name that asyncio gives it
        """The client went away."""
        self._ended(self)

    async def _shake(self, transport: Any) -> None:
        loop = asyncio.get_running_loop()
        try:
            secure = await loop.start_tls(
                transport, self, self._context, server_side=True, ssl_handshake_timeout=self._seconds
            )
        except (OSError, asyncio.IncompleteReadError):
            # Scanners and clients that do not trust the certificate: their side knows why.
            secure = None
        self._ended(self)
        if secure is None or secure.is_closing():
            transport.abort()
            return
        protocol = self._begin()
        secure.set_protocol(protocol)
        protocol.connection_made(secure)
        for data in self._early:
            protocol.data_received(data)
