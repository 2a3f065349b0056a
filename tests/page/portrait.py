"""The pictures in the documentation: `python -m tests.page.portrait` takes them of a real service, in two minutes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from tests.page import chromium
from tests.page.serving import serving

PLACE = Path(__file__).parents[2] / "docs" / "page.png"
PATIENCE = 180_000
JOIN = "FROM trades AS t\nJOIN quotes AS q WITHIN 3 SECONDS ON t.sym = q.sym AND ABS(t.px - q.bid) <= 0.05"
QUERIES = {
    "fair_trades": f"SELECT t.sym, t.px, q.bid, t.qty\n{JOIN}",
    "large_fair_trades": f"SELECT t.sym, t.px, t.qty, q.size\n{JOIN}\nWHERE t.qty > 5",
    "close_flights": "SELECT a.flight, b.flight AS other, a.altitude\nFROM aircraft AS a\n"
    "JOIN aircraft AS b WITHIN 2 SECONDS ON a.altitude = b.altitude AND ABS(a.x - b.x) <= 4\nWHERE a.flight < b.flight",
}
WRITTEN = f"SELECT t.*, q.bid - t.px AS margin\n{JOIN}\nWHERE t.sym IN ('ACME', 'BOLT')"
BATCHES = 70


def main() -> None:
    """Take it."""
    found = chromium.find()
    if found is None:
        raise SystemExit(chromium.HOW)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(found), args=arguments)
        page = browser.new_page(viewport={"width": 1440, "height": 1180}, reduced_motion="reduce")
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        page.goto(address)
        expect(page.locator("#connection")).to_contain_text("batch")
        for name, sql in QUERIES.items():
            page.locator("#sql").fill(sql)
            page.get_by_label("Name (optional)").fill(name)
            page.get_by_role("button", name="Create query").click()
            expect(page.get_by_role("heading", name=f"Rows of {name}")).to_be_visible()
        last = page.evaluate("() => fetch('/api/v1/history').then((a) => a.json()).then((h) => h.samples.at(-1).batch)")
        page.locator("#sql").fill(WRITTEN)
        page.locator(".node.is-join[data-shared]").click()
        page.get_by_role("button", name="Close").last.click()
        page.wait_for_function(
            "(batch) => Number(document.querySelector('#connection').textContent.replace(/\\D/g, '')) >= batch",
            arg=last + BATCHES,
        )
        page.get_by_label("1 min").check()
        page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        page.screenshot(path=PLACE, animations="disabled", full_page=True)
        page.locator("#queries").get_by_role("button", name="fair_trades", exact=True).click()
        expect(page.locator("#why .stages li")).to_have_count(6)
        page.locator("#why").screenshot(path=PLACE.with_name("page-why.png"), animations="disabled")
        browser.close()


if __name__ == "__main__":
    main()
