"""Answers that are kept for a moment: which, for how long, and that nobody can tell them from made ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from streamjoin.service.hub import Hub
from streamjoin.service.web.cached import LARGEST, MOST, Kept, LastKnown
from streamjoin.service.web.problems import Problem
from streamjoin.service.web.waiting import WaitingRequests
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


def test_the_history_outlives_batches_but_no_change(made: Made) -> None:
    first = made.ask("/api/v1/history")
    made.hub.publish("a batch")
    made.now += 0.9
    assert made.ask("/api/v1/history") == first
    made.hub.poke()
    second = made.ask("/api/v1/history")
    assert second != first
    made.now += 1.5
    assert made.ask("/api/v1/history") not in (first, second)
    # A file is not given to who asks for JSON.
    assert made.ask("/api/v1/queries/a/rows", accept=b"text/csv") != made.ask("/api/v1/queries/a/rows")


def test_the_last_known_answer_stands_in_while_a_batch_runs() -> None:
    now, made, boundary = 0.0, [0], threading.Event()

    def make() -> Response:
        assert boundary.wait(60)
        made[0] += 1
        return Response(str(made[0]))

    async def run() -> None:
        nonlocal now
        hub = Hub()
        plans = LastKnown(hub, WaitingRequests("plans"), lambda: now, patience=0.01)

        async def ask() -> bytes:
            return bytes((await plans.answer("json", make)).body)

        async def settled() -> None:
            while plans._begun:
                await asyncio.sleep(0)

        with pytest.raises(Problem, match="one is running"):
            await ask()
        boundary.set()
        await settled()
        assert [await ask(), await ask()] == [b"1", b"1"]
        # A second old: nobody waits for the next one, and one computation serves all.
        now = 1.5
        boundary.clear()
        assert [await ask(), await ask()] == [b"1", b"1"]
        boundary.set()
        await settled()
        assert await ask() == b"2"
        # After a change, and after long, it is waited for, and the old one is better than none.
        boundary.clear()
        hub.poke()
        assert await ask() == b"2"
        boundary.set()
        await settled()
        assert await ask() == b"3"
        now, plans._patience = 12.0, 60
        assert await ask() == b"4"

    asyncio.run(run())


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
        assert client.get("/api/v1/queries").json() == {"queries": [], "next": None}
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


def test_a_request_waits_for_its_turn_only_for_some_time() -> None:
    boundary = threading.Event()

    async def run() -> None:
        waiting = WaitingRequests("changes", threads=1, patience=0.01)
        first = asyncio.create_task(waiting.run(boundary.wait, 60))
        await asyncio.sleep(0)
        with pytest.raises(Problem, match=r"busy with other changes for more than 0.01 seconds; try again soon") as why:
            await waiting.run(boundary.is_set)
        assert (why.value.status, why.value.headers, waiting.refused) == (503, {"Retry-After": "2"}, 1)
        boundary.set()
        assert await first and await waiting.run(boundary.is_set) and not waiting.open

    asyncio.run(run())
