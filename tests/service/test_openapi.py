"""The interface against its own description: made-up requests find no 500, no hang and no undescribed answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]
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
    ("/api/v1/activity", "GET"),
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
    ("/api/v1/queries/{name}/groups", "GET"),
]
NOTHING_TO_GIVE = [
    ("/metrics", "GET"),
    *((f"/api/v1/{name}", "GET") for name in ("health", "ready", "info", "activity")),
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


@pytest.mark.slow
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
        # A cursor is the service's own, and no text that somebody makes up.
        given = {"cursor"} | ({"after"} if path.endswith("/rows") else set())
        taken = method == "POST" or bool(given & set(case.query or {}))
        excluded: list[Any] = [positive_data_acceptance] if taken else []
        excluded += [negative_data_rejection] if response.status_code == 413 else []
        case.validate_response(response, excluded_checks=excluded)

    ask()
    assert answered


IDS = """changelog create_query drop_query follow_events follow_rows health history late_rows list_queries list_streams
malformed_records newest_rows open_groups pause_query prometheus ready resume_query show_activity show_info show_plan
show_query show_stream"""


def test_every_operation_is_fuzzed_and_described(described: schemathesis.BaseSchema) -> None:
    schema = described.raw_schema
    operations = {
        (path, method.upper()): operation
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    }
    assert set(operations) == {*OPERATIONS, *ENDLESS}
    # Clients are made of these names: they stay.
    assert {operation["operationId"] for operation in operations.values()} == set(IDS.split())
    for (path, method), operation in operations.items():
        assert operation["summary"] and operation["description"] and operation["tags"], path
        for parameter in operation.get("parameters", ()):
            assert parameter["description"], f"{path} {parameter['name']}"
        for status, response in operation["responses"].items():
            media = set(response.get("content", {}))
            if status >= "400" and (path, status) != ("/api/v1/ready", "503"):
                assert media == {"application/problem+json"}, f"{path} {status}"
            elif (path, method) in ENDLESS:
                assert media == {"text/event-stream"}
            assert ("415" in operation["responses"]) == (method != "GET")
    for name, model in schema["components"]["schemas"].items():
        assert model["description"], name
        assert [field for field, told in model.get("properties", {}).items() if not told.get("description")] == [], name


def test_the_token_is_described(described: schemathesis.BaseSchema) -> None:
    schema = create_app(None, ServiceConfig(token="x" * 20)).openapi()
    assert schema["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert schema["security"] == [{"token": []}]
    open_ = {
        path for path, methods in schema["paths"].items() for told in methods.values() if told.get("security") == []
    }
    assert open_ == {"/api/v1/health", "/api/v1/ready"}
    assert described.raw_schema["security"] == [{}, {"token": []}]


def test_every_example_is_one(described: schemathesis.BaseSchema) -> None:
    schema = described.raw_schema
    # The fuzz test may have dropped it.
    create = described["/api/v1/queries"]["POST"].Case(
        body={"sql": NEAR, "name": "near"}, media_type="application/json"
    )
    assert create.call(headers={"Host": "testserver"}).status_code in (201, 409)
    examples = 0
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            for status, response in operation["responses"].items():
                told = response.get("content", {}).get("application/json")
                if told is None:
                    continue
                examples += 1
                validator = jsonschema.Draft202012Validator({**told["schema"], "components": schema["components"]})
                assert list(validator.iter_errors(told["example"])) == [], f"{method} {path} {status}"
                if method == "get" and status == "200":
                    case = described[path]["GET"].Case(path_parameters={"name": REAL.get(path, "near")})
                    answer = case.call(headers={"Host": "testserver"}).json()
                    real, example = _shape(answer), _shape(told["example"])
                    assert real.keys() == example.keys(), path
                    # An empty list shows nothing of its records.
                    assert {key: example[key] for key in real if real[key]} == {k: v for k, v in real.items() if v}, (
                        path
                    )
    assert examples >= 19
    body = schema["components"]["schemas"]["NewQuery"]
    assert body["examples"][0]["sql"].startswith("SELECT")


REAL = {f"/api/v1/streams/{{name}}{part}": "trades" for part in ("", "/late", "/malformed")}


def _shape(value: dict[str, Any]) -> dict[str, Any]:
    """The keys of an answer, and those of the records in its lists."""
    records = {key: item[0] for key, item in value.items() if isinstance(item, list) and item}
    return {key: set(records[key]) if isinstance(records.get(key), dict) else None for key in value}
