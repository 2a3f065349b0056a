"""The ad-hoc engine of `tests/spark/adhoc_driver.py` in this process alone, with its checkpoint in a store."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from streamjoin.storage import settings
from tests.spark.adhoc_driver import main

if __name__ == "__main__":
    settings.use(json.loads(sys.argv[3]))
    main(Path(sys.argv[1]), "embedded", sys.argv[2])
