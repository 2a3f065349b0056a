"""An S3 store in this process that counts what it is asked for, and can be told to know no conditional writes."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app  # type: ignore[attr-defined]
from werkzeug.serving import make_server


class ObjectStore:
    """moto's S3 behind a counter of requests by their kind."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.requests: Counter[str] = Counter()
        self.conditional = True
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.port}"
        self.client = boto3.client(
            "s3", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
        )

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def empty_bucket(self, name: str) -> str:
        """A new bucket, and a counter that begins at nothing."""
        self.client.create_bucket(Bucket=name)
        self.requests.clear()
        return name

    def keys(self, bucket: str) -> list[str]:
        return [entry["Key"] for entry in self.client.list_objects_v2(Bucket=bucket).get("Contents", ())]

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        once = "HTTP_IF_NONE_MATCH" in request
        self.requests[
            _kind(request["REQUEST_METHOD"], request["PATH_INFO"], request.get("QUERY_STRING", ""), once)
        ] += 1
        if once and not self.conditional:
            request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0))
            start("501 Not Implemented", [("Content-Type", "application/xml")])
            return [b"<Error><Code>NotImplemented</Code><Message>A header</Message></Error>"]
        answer: Iterable[bytes] = self._app(request, start)
        return answer


def _kind(method: str, path: str, query: str, once: bool) -> str:
    if "upload" in query:
        return "multipart"
    if method == "PUT":
        return "directory marker" if path.endswith("/") else "conditional PUT" if once else "PUT"
    return "LIST" if "list-type" in query else method
