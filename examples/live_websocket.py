"""A FastAPI service: clients send trades and quotes over websockets, and others get the matches as they are found.

Serve it with `uvicorn examples.live_websocket:app` (uvicorn needs the package `websockets` for this), or run
`python examples/live_websocket.py` to see three clients talk to it.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pyarrow as pa
from fastapi import FastAPI, WebSocket, WebSocketDisconnect

import streamjoin as sj

# Trades and quotes of one symbol whose prices differ by at most a quarter, among the last 100,000 of each.
spec = sj.JoinSpec(on=sj.Equi("sym") & sj.Band("px", "bid", 0.25), window=sj.CountWindow(100_000))
TRADES = pa.schema([("sym", pa.string()), ("px", pa.float64())])
QUOTES = pa.schema([("sym", pa.string()), ("bid", pa.float64())])


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One live join for all clients; those that are connected at the end just lose it."""
    app.state.join = sj.live(spec, left_schema=TRADES, right_schema=QUOTES)
    yield
    await asyncio.to_thread(app.state.join.stop)


app = FastAPI(lifespan=lifespan)


@app.websocket("/feed/{side}/{name}")
async def feed(socket: WebSocket, side: str, name: str) -> None:
    """A source: every message is a list of rows. A client that sends too fast waits, and holds up no other."""
    await socket.accept()
    source = socket.app.state.join.source(side, name)
    try:
        while True:
            rows = await socket.receive_json()
            try:
                await source.push_async(rows)
                await socket.send_json({"taken": len(rows)})
            except sj.InputError as error:
                await socket.send_json({"refused": str(error)})
    except WebSocketDisconnect:
        source.finish()


@app.websocket("/matches")
async def matches(socket: WebSocket) -> None:
    """A consumer: gets every match from now on, as JSON rows."""
    # The consumer exists before the client hears that it is connected.
    consumer = socket.app.state.join.consumer()
    await socket.accept()
    try:
        async for rows in consumer:
            await socket.send_json(rows.to_pylist())
    except WebSocketDisconnect:
        pass
    finally:
        consumer.close()


class Client:
    """A websocket client that talks to the application in this process."""

    def __init__(self, path: str) -> None:
        self._sent: asyncio.Queue[dict] = asyncio.Queue()
        self._received: asyncio.Queue[dict] = asyncio.Queue()
        # The screen's handler waits for matches and never looks whether the client is still there.
        self._reads = path != "/matches"
        scope = {"type": "websocket", "path": path, "query_string": b"", "headers": [], "subprotocols": []}
        self._task = asyncio.create_task(app(scope, self._sent.get, self._received.put))

    async def __aenter__(self) -> "Client":
        await self._sent.put({"type": "websocket.connect"})
        await self._received.get()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sent.put({"type": "websocket.disconnect", "code": 1000})
        if not self._reads:
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def send(self, rows: list[dict]) -> None:
        """Send rows."""
        await self._sent.put({"type": "websocket.receive", "text": json.dumps(rows)})

    async def receive(self) -> object:
        """The next message."""
        return json.loads((await self._received.get())["text"])


async def show() -> None:
    """Three clients: two sources and one screen."""
    async with (
        lifespan(app),
        Client("/matches") as screen,
        Client("/feed/left/desk") as trades,
        Client("/feed/right/exchange") as quotes,
    ):
        await trades.send([{"sym": "A", "px": 10.0}, {"sym": "B", "px": 55.0}])
        print("trades:", await trades.receive())
        await quotes.send([{"sym": "A", "bid": 10.1}, {"sym": "B", "bid": 99.0}])
        print("quotes:", await quotes.receive())
        print("a match:", await screen.receive())
        await quotes.send([{"symbol": "A"}])
        print("quotes:", await quotes.receive())


if __name__ == "__main__":
    asyncio.run(show())
