"""The checks of axe-core, run in the page."""

from __future__ import annotations

import importlib.resources
from typing import Any

from playwright.sync_api import Page

SCRIPT = (importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text()


def violations(page: Page) -> list[str]:
    """What axe-core finds wrong, with the first element of each."""
    if not page.evaluate("'axe' in globalThis"):
        page.evaluate(SCRIPT)
    found: list[Any] = page.evaluate("axe.run({ resultTypes: ['violations'] }).then((found) => found.violations)")
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]} ({len(one['nodes'])})" for one in found]
