"""A schema registry for tests: the part of its REST that clients need, in this process."""

from __future__ import annotations

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class RegistryServer:
    """Schemas by id and by subject; it asks for a password where it has one, and counts questions."""

    def __init__(self, password: str | None = None) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.password = password
        self.asked: list[str] = []
        self.broken = False
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                """Print nothing."""

            def do_GET(self) -> None:
                self._answer(*registry.answer("GET", self.path, None, self.headers.get("Authorization")))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(*registry.answer("POST", self.path, body, self.headers.get("Authorization")))

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: Any = ()) -> int:
        """The id of a new schema."""
        number = len(self.schemas) + 1
        self.schemas[number] = {"schema": schema, "schemaType": kind, "references": list(references)}
        self.subjects.setdefault(subject, []).append(number)
        return number

    def answer(self, method: str, path: str, body: Any, authorization: str | None) -> tuple[int, dict[str, Any]]:
        self.asked.append(path)
        if self.broken:
            return 500, {"error_code": 50001, "message": "out of order"}
        if self.password is not None:
            wanted = "Basic " + base64.b64encode(self.password.encode()).decode()
            if authorization != wanted:
                return 401, {"error_code": 401, "message": "Unauthorized"}
        by_id = re.match(r"/schemas/ids/(\d+)", path)
        if by_id is not None:
            number = int(by_id[1])
            if number not in self.schemas:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, {"id": number, **self.schemas[number]}
        version = re.match(r"/subjects/([^/]+)/versions/(\w+)", path)
        if version is not None:
            numbers = self.subjects[version[1]]
            at = len(numbers) if version[2] == "latest" else int(version[2])
            number = numbers[at - 1]
            return 200, {"id": number, "subject": version[1], "version": at, **self.schemas[number]}
        subject = re.match(r"/subjects/([^/?]+)", path)
        if method == "POST" and subject is not None:
            content = {"schemaType": "AVRO", "references": [], **body}
            number = next((n for n, known in self.schemas.items() if known["schema"] == content["schema"]), 0)
            number = number or self.register(
                subject[1], content["schema"], content["schemaType"], content["references"]
            )
            known = self.subjects.setdefault(subject[1], [])
            if number not in known:
                known.append(number)
            return 200, {
                "id": number,
                "subject": subject[1],
                "version": known.index(number) + 1,
                **self.schemas[number],
            }
        return 404, {"error_code": 404, "message": "not here"}

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
