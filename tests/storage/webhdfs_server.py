"""A file system at the other end of a connection, for the tests: the WebHDFS protocol over a local directory.

Spark reaches it by Hadoop's own client and the log by fsspec's, so that both meet a real remote file system with the
rules of HDFS: no mapping into memory, and no renaming onto a file that is there unless one asks for it.
"""

from __future__ import annotations

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

_PREFIX = "/webhdfs/v1"


class WebHdfs:
    """A server on loopback; `url` is what a checkpoint there begins with."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.full: str | None = None
        """Paths that hold this text can't be written to."""
        handler = type("Bound", (_Handler,), {"root": directory, "server_": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"webhdfs://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    root: Path
    server_: WebHdfs
    protocol_version = "HTTP/1.1"
    # Headers and body are two writes: the second would wait for the acknowledgement of the first, 40 ms each time.
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        given = dict(parse_qsl(parts.query))
        path = self.root / unquote(parts.path.removeprefix(_PREFIX)).lstrip("/")
        body = self._body()
        operation = getattr(self, f"_{given['op'].lower()}", None)
        if operation is None:
            self._refuse(400, "UnsupportedOperationException", given["op"])
        elif given["op"] in ("CREATE", "APPEND") and "data" not in given:
            # As a name node does: the data goes elsewhere.
            self._send(307, b"", {"Location": f"http://{self.headers['Host']}{self.path}&data=true"})
        else:
            try:
                operation(path, given, body)
            except FileNotFoundError:
                self._refuse(404, "FileNotFoundException", f"File does not exist: {path}")

    do_GET = do_PUT = do_POST = do_DELETE = _serve

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, data: dict[str, Any]) -> None:
        # Without its type: the Hadoop in pyspark has lost the library by which it would look at it.
        self._send(200, json.dumps(data).encode())

    def _refuse(self, status: int, kind: str, message: str) -> None:
        found = {"exception": kind, "javaClassName": f"java.io.{kind}", "message": message}
        self._send(status, json.dumps({"RemoteException": found}).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    # The operations

    def _getfilestatus(self, path: Path, _: dict[str, str], __: bytes) -> None:
        self._answer({"FileStatus": _status(path, "")})

    _getfilelinkstatus = _getfilestatus

    def _liststatus(self, path: Path, _: dict[str, str], __: bytes) -> None:
        self._answer({"FileStatuses": {"FileStatus": _listed(path)}})

    def _liststatus_batch(self, path: Path, _: dict[str, str], __: bytes) -> None:
        listing = {"FileStatuses": {"FileStatus": _listed(path)}}
        self._answer({"DirectoryListing": {"partialListing": listing, "remainingEntries": 0}})

    def _mkdirs(self, path: Path, _: dict[str, str], __: bytes) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._answer({"boolean": True})

    def _create(self, path: Path, given: dict[str, str], body: bytes) -> None:
        if path.exists() and given.get("overwrite") != "true":
            self._refuse(403, "FileAlreadyExistsException", f"{path} is there")
            return
        if self.server_.full is not None and self.server_.full in str(path):
            self._refuse(403, "DSQuotaExceededException", "The DiskSpace quota is exceeded")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        self._send(201, b"")

    def _append(self, path: Path, _: dict[str, str], body: bytes) -> None:
        with path.open("ab") as file:
            file.write(body)
        self._send(200, b"")

    def _open(self, path: Path, given: dict[str, str], _: bytes) -> None:
        begin = int(given.get("offset", 0))
        whole = path.read_bytes()
        self._send(200, whole[begin : begin + int(given.get("length", len(whole)))])

    def _rename(self, path: Path, given: dict[str, str], _: bytes) -> None:
        target = self.root / given["destination"].lstrip("/")
        if target.exists() and "OVERWRITE" not in given.get("renameoptions", ""):
            self._answer({"boolean": False})
            return
        path.replace(target)
        self._answer({"boolean": True})

    def _delete(self, path: Path, given: dict[str, str], _: bytes) -> None:
        there = path.exists()
        if path.is_dir():
            shutil.rmtree(path) if given.get("recursive") == "true" else path.rmdir()
        else:
            path.unlink(missing_ok=True)
        self._answer({"boolean": there})

    def _setpermission(self, *_: object) -> None:
        self._send(200, b"")

    def _getserverdefaults(self, *_: object) -> None:
        sizes = {"blockSize": 1 << 27, "bytesPerChecksum": 512, "writePacketSize": 1 << 16, "fileBufferSize": 4096}
        self._answer({"FsServerDefaults": {**sizes, "replication": 1, "checksumType": 2, "keyProviderUri": ""}})

    def _gethomedirectory(self, *_: object) -> None:
        self._answer({"Path": "/"})


def _listed(path: Path) -> list[dict[str, Any]]:
    if path.is_file():
        return [_status(path, "")]
    found = []
    for entry in sorted(path.iterdir()):
        try:
            found.append(_status(entry, entry.name))
        except FileNotFoundError:
            # It went while the others were looked at.
            continue
    return found


def _status(path: Path, name: str) -> dict[str, Any]:
    found = path.stat()
    at = found.st_mtime_ns // 1_000_000
    common = {"owner": "tests", "group": "tests", "permission": "755", "storagePolicy": 0, "childrenNum": 0}
    times = {"accessTime": at, "modificationTime": at, "fileId": found.st_ino, "pathSuffix": name}
    if path.is_dir():
        return {**common, **times, "type": "DIRECTORY", "length": 0, "blockSize": 0, "replication": 0}
    return {**common, **times, "type": "FILE", "length": found.st_size, "blockSize": 1 << 27, "replication": 1}
