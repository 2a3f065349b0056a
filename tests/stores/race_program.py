"""A writer of journals for races: opens the checkpoint that a line names and writes changes until it is fenced.

It prints `<serial> <name>` for each change that it may acknowledge, then `fenced` or, once told, `stopped`.
"""

from __future__ import annotations

import json
import select
import sys

from streamjoin.model.errors import StateError
from streamjoin.queries.engine.journal import FileJournal
from streamjoin.storage import settings


def write_until_fenced(checkpoint: str, name: str) -> str:
    try:
        journal = FileJournal(checkpoint, "embedded")
    except StateError:
        return "refused"
    try:
        serial = max((last_serial(journal, number) for number in journal.numbers("changes")), default=0)
        while not select.select([sys.stdin], [], [], 0)[0]:
            serial += 1
            journal.write_changes(serial, serial, [{"serial": serial, "by": name}])
            print(serial, name, flush=True)
        sys.stdin.readline()
    except StateError:
        return "fenced"
    finally:
        journal.close()
    return "stopped"


def last_serial(journal: FileJournal, number: int) -> int:
    return int(journal.read("changes", number)["records"][-1]["serial"])


if __name__ == "__main__":
    if sys.argv[2] != "{}":
        settings.use(json.loads(sys.argv[2]))
    for line in iter(sys.stdin.readline, ""):
        print(write_until_fenced(line.strip(), sys.argv[1]), flush=True)
