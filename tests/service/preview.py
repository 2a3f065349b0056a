"""The service over the engine without Spark: `python -m tests.service.preview [--port 8765] [--every 1.0]`.

For looking at the page and the interface where starting Spark would take too long.
"""

from __future__ import annotations

import argparse
import datetime as dt
from pathlib import Path

import uvicorn

from streamjoin.service import app as application
from streamjoin.service.config import ServiceConfig
from tests.service import feeds
from tests.service.memory_engine import MemoryEngine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two batches")
    parser.add_argument("--token", default=None)
    parser.add_argument("--page", type=Path, default=None, help="another folder for the page's files")
    options = parser.parse_args()
    if options.page is not None:
        application.PAGE = options.page  # type: ignore[misc]
    began = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    engine = MemoryEngine(feeds.STREAMS, lambda number: feeds.batch(number, 100, began))
    app = application.create_app(engine, ServiceConfig(port=options.port, token=options.token))
    engine.start(options.every)
    try:
        uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
