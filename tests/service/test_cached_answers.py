"""Answers that are kept for a moment: which, for how long, and that nobody can tell them from made ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from streamjoin.service.hub import Hub
from streamjoin.service.web.cached import LARGEST, MOST, Kept
from tests.service.conftest import NEAR, Live


class Made:
    """An application that numbers its answers, asked as a server would."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.now = 0.0
        self.made = 0
        self.answer: Any = lambda number: PlainTextResponse(str(number), headers={"x-made": str(number)})
        self._kept = Kept(self._app, self.hub, lambda: self.now)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.made += 1
        scope["route"] = "the route"
        await self.answer(self.made)(scope, receive, send)

    def ask(self, path: str = "/api/v1/queries", query: bytes = b"", method: str = "GET", accept: bytes = b"") -> bytes:
        sent: list[Any] = []
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query,
            "headers": [(b"accept", accept)],
        }

        async def send(message: Any) -> None:
            # What stands before may add to an answer, and not to the next one.
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-added", b"")]
            sent.append(message)

        async def receive() -> Any:
            # A client that stays, and sends nothing more.
            await asyncio.Event().wait()

        async def ask() -> None:
            await self._kept(scope, receive, send)
            for renewal in list(self._kept.renewals.values()):
                await renewal

        asyncio.run(ask())
        assert scope["route"] == "the route"
        assert [name for name, _ in sent[0]["headers"]].count(b"x-added") == 1
        return b"".join(message.get("body", b"") for message in sent[1:])


@pytest.fixture
def made() -> Iterator[Made]:
    yield Made()


def test_an_answer_is_made_once_a_batch_and_never_kept_for_long(made: Made) -> None:
    assert [made.ask(), made.ask()] == [b"1", b"1"]
    made.hub.publish("a batch")
    assert [made.ask(), made.ask()] == [b"2", b"2"]
    made.hub.poke()
    assert made.ask() == b"3"
    made.now = 0.24
    assert made.ask() == b"3"
    made.now = 0.25
    assert made.ask() == b"4"


def test_expensive_answers_outlive_batches_but_no_change(made: Made) -> None:
    for path in ("/api/v1/plan", "/api/v1/history"):
        first = made.ask(path)
        made.hub.publish("a batch")
        made.now += 0.5
        assert made.ask(path) == first
        made.hub.poke()
        second = made.ask(path)
        assert second != first
        # Nobody waits for the next one: it is made in the background, and the old one serves meanwhile.
        made.now += 1.5
        assert made.ask(path) == second
        third = made.ask(path)
        assert third not in (first, second)
        # One that can't be made changes nothing; but none is given for ever.
        made.answer, good = (lambda _: Response("no", 503)), made.answer
        made.now += 1.5
        assert [made.ask(path), made.ask(path)] == [third, third]
        made.now += 8.5
        assert made.ask(path) == b"no"
        made.answer = good
        assert made.ask(path) not in (first, second, third)
    # A graph is not given to who asks for a text.
    assert made.ask("/api/v1/plan", accept=b"text/plain") != made.ask("/api/v1/plan")


def test_only_the_same_question_gets_the_same_answer(made: Made) -> None:
    asked = [
        ("/api/v1/queries", b""),
        ("/api/v1/queries/a", b""),
        ("/api/v1/queries/a/rows", b""),
        ("/api/v1/queries/a/rows", b"limit=1"),
    ]
    answers = [made.ask(path, query) for path, query in asked]
    assert len(set(answers)) == len(asked)
    assert [made.ask(path, query) for path, query in asked] == answers


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/api/v1/queries"), ("GET", "/metrics"), ("GET", "/api/v1/ready")]
)
def test_what_is_never_kept(made: Made, method: str, path: str) -> None:
    assert made.ask(path, method=method) != made.ask(path, method=method)


@pytest.mark.parametrize(
    "answer",
    [
        lambda number: Response(str(number), 404),
        lambda number: Response(f"{number}" + "x" * LARGEST),
        lambda number: StreamingResponse(iter([str(number), "x"])),
    ],
    ids=["errors", "large ones", "streams"],
)
def test_answers_that_are_never_kept(made: Made, answer: Any) -> None:
    made.answer = answer
    assert made.ask() != made.ask()


def test_not_more_than_a_few_are_kept(made: Made) -> None:
    first = made.ask(query=b"0")
    for number in range(1, MOST):
        made.ask(query=b"%d" % number)
    assert made.ask(query=b"0") == first
    made.ask(query=b"more")
    made.ask(query=b"and more")
    assert made.ask(query=b"1") == b"%d" % made.made


def test_a_client_sees_its_own_changes_at_once(live: Live) -> None:
    client = live.client()
    for _ in range(3):
        assert client.get("/api/v1/queries").json() == {"queries": []}
    live.create(NEAR, name="near")
    one = client.get("/api/v1/queries/near")
    again = client.get("/api/v1/queries/near")
    assert (one.json()["state"], one.text) == ("running", again.text)
    assert {name: value for name, value in one.headers.items() if name != "date"} == {
        name: value for name, value in again.headers.items() if name != "date"
    }
    client.post("/api/v1/queries/near/pause")
    assert client.get("/api/v1/queries/near").json()["state"] == "paused"
    client.delete("/api/v1/queries/near")
    assert client.get("/api/v1/queries/near").status_code == 404
    counted = client.get("/metrics").text
    assert 'method="GET",route="/api/v1/queries",status="200"} 3' in counted
