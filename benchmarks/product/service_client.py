"""A client that asks a service at a fixed rate: `python -m benchmarks.product.service_client URL RATE SECONDS`.

A process of its own. Requests are due by the clock, over connections that are kept, and an answer's time counts from
when its request was due. Prints a line when it begins to ask, and one of JSON at the end: answers, failures,
milliseconds, and the CPU that asking took.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

CONNECTIONS = 8
PATHS = (
    "/queries",
    "/queries/q0",
    "/queries/q1/rows?limit=20",
    "/streams",
    "/plan",
    "/history",
    "/health",
    "/changelog?since=3",
)


@dataclass
class Tally:
    """What became of the requests."""

    by_path: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds."""
    failures: int = 0

    def as_data(self) -> dict[str, Any]:
        """The figures."""
        times = [one for path in self.by_path.values() for one in path]
        slowest = max(self.by_path, key=lambda path: _percentile(self.by_path[path], 0.99), default="")
        return {
            "answers": len(times),
            "failures": self.failures,
            "median_ms": _percentile(times, 0.5),
            "p99_ms": _percentile(times, 0.99),
            "slowest_path": slowest,
            "slowest_path_p99_ms": _percentile(self.by_path.get(slowest, []), 0.99),
            "client_cpu_s": time.process_time(),
        }


def _percentile(times: list[float], share: float) -> float:
    ordered = sorted(times) or [0.0]
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def ask(host: str, port: int, rate: float, seconds: float) -> Tally:
    """Ask for a while."""
    tally = Tally()
    begin = time.perf_counter()
    await asyncio.gather(*(_connection(host, port, rate, seconds, n, begin, tally) for n in range(CONNECTIONS)))
    return tally


async def _connection(
    host: str, port: int, rate: float, seconds: float, first: int, begin: float, tally: Tally
) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    for number in range(first, int(rate * seconds), CONNECTIONS):
        due = begin + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        path = PATHS[(number // CONNECTIONS) % len(PATHS)]
        writer.write(f"GET /api/v1{path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        await reader.readexactly(length)
        if head.split(b" ", 2)[1] == b"200":
            tally.by_path.setdefault(path, []).append((time.perf_counter() - due) * 1000)
        else:
            tally.failures += 1
    writer.close()


def main() -> None:
    """Run with the arguments of the command line."""
    url, rate, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    parts = urlsplit(url)
    print("asking", flush=True)
    tally = asyncio.run(ask(parts.hostname or "127.0.0.1", parts.port or 80, rate, seconds))
    print(json.dumps(tally.as_data()))


if __name__ == "__main__":
    main()
