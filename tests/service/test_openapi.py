"""The interface against its own description: made-up requests find no 500, no hang and no undescribed answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from streamjoin.service.app import create_app
from streamjoin.service.config import Limits, ServiceConfig
from tests.service.conftest import NEAR
from tests.service.ticking import TickingEngine

OPERATIONS = [
    ("/api/v1/health", "GET"),
    ("/api/v1/ready", "GET"),
    ("/api/v1/info", "GET"),
    ("/api/v1/streams", "GET"),
    ("/api/v1/streams/{name}", "GET"),
    ("/api/v1/streams/{name}/late", "GET"),
    ("/api/v1/streams/{name}/malformed", "GET"),
    ("/api/v1/plan", "GET"),
    ("/api/v1/changelog", "GET"),
    ("/api/v1/history", "GET"),
    ("/metrics", "GET"),
    ("/api/v1/queries", "GET"),
    ("/api/v1/queries", "POST"),
    ("/api/v1/queries/{name}", "GET"),
    ("/api/v1/queries/{name}", "DELETE"),
    ("/api/v1/queries/{name}/pause", "POST"),
    ("/api/v1/queries/{name}/resume", "POST"),
    ("/api/v1/queries/{name}/rows", "GET"),
]
NOTHING_TO_GIVE = [
    ("/metrics", "GET"),
    *((f"/api/v1/{name}", "GET") for name in ("health", "ready", "info", "streams", "history", "queries")),
]
# They have no end; test_events.py has them.
ENDLESS = [("/api/v1/events", "GET"), ("/api/v1/queries/{name}/events", "GET")]


@pytest.fixture(scope="module")
def described() -> Iterator[schemathesis.BaseSchema]:
    engine = TickingEngine()
    config = ServiceConfig(allowed_hosts=("testserver",), limits=Limits(queries=20))
    for name in ("near", "q1"):
        engine.create(NEAR, name)
        engine.tick()
    yield schemathesis.openapi.from_asgi("/api/v1/openapi.json", create_app(engine, config))
    engine.stop()


CASES = [
    (path, method, mode)
    for path, method in OPERATIONS
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or (path, method) not in NOTHING_TO_GIVE
]


@pytest.mark.parametrize(("path", "method", "mode"), CASES, ids=lambda part: getattr(part, "value", part))
def test_every_answer_is_described(
    described: schemathesis.BaseSchema, path: str, method: str, mode: GenerationMode
) -> None:
    operation = described[path][method]
    answered = 0

    @settings(max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:  # type: ignore[type-arg]
        nonlocal answered
        answered += 1
        response = case.call(headers={"Host": "testserver"})
        # Whether a text is a query is not for a description to say; what is too large is refused before it is read.
        excluded: list[Any] = [positive_data_acceptance] if method == "POST" else []
        excluded += [negative_data_rejection] if response.status_code == 413 else []
        case.validate_response(response, excluded_checks=excluded)

    ask()
    assert answered


def test_every_operation_is_fuzzed_and_described(described: schemathesis.BaseSchema) -> None:
    found = set()
    for path, methods in described.raw_schema["paths"].items():
        for method, told in methods.items():
            found.add((path, method.upper()))
            assert told["summary"], f"{method} {path}"
            assert {"200", "201", "204"} & set(told["responses"])
    assert found == {*OPERATIONS, *ENDLESS}
    body = described.raw_schema["components"]["schemas"]["NewQuery"]
    assert body["examples"][0]["sql"].startswith("SELECT")
