"""Steps that run at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


def run_threads(steps: Sequence[Callable[[], object]]) -> None:
    """Run each step in a thread of its own, started in this order; raises the first error."""
    errors: list[BaseException] = []

    def run(step: Callable[[], object]) -> None:
        try:
            step()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(step,), daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
