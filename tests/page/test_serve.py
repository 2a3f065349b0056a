"""The page over `streamjoin serve` as it is shipped: Spark, the demo streams, two queries that share a join."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.conftest import QUICK_START
from tests.page.conftest import Picture, Visit
from tests.page.serving import serving

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PATIENCE = 120_000
NEAR = (
    "SELECT t.sym, t.px, q.bid FROM trades AS t JOIN quotes AS q WITHIN 3 SECONDS "
    "ON t.sym = q.sym AND ABS(t.px - q.bid) <= 0.1"
)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    settings = {key: str(value).lower() if isinstance(value, bool) else value for key, value in QUICK_START.items()}
    with serving(tmp_path, settings) as started:
        yield started


def test_a_shared_join_on_spark(address: str, visit: Visit, picture: Picture) -> None:
    page = visit(address)
    expect(page.locator("#connection")).to_contain_text("batch", timeout=PATIENCE)
    page.locator("#sql").click()
    page.keyboard.type(NEAR)
    page.keyboard.press("Escape")
    expect(page.locator(".preview")).to_contain_text("3 columns")
    page.get_by_label("Name (optional)").fill("near")
    page.get_by_role("button", name="Create query").click()
    expect(page.locator("#rows tbody tr").nth(10)).to_be_visible(timeout=PATIENCE)

    page.locator("#sql").fill(f"{NEAR} WHERE t.qty > 5")
    expect(page.locator(".preview")).to_contain_text("with near")
    page.get_by_label("Name (optional)").fill("near_large")
    page.get_by_role("button", name="Create query").click()
    expect(page.locator(".node.is-join[data-shared]")).to_have_attribute(
        "aria-label", re.compile("shared by near and near_large"), timeout=PATIENCE
    )
    expect(page.get_by_role("heading", name="Rows of near_large")).to_be_visible()
    expect(page.locator("#rows tbody tr").first).to_be_visible(timeout=PATIENCE)
    page.locator(".node.is-join[data-shared]").click()
    picture(page, "spark")

    page.get_by_role("button", name="Drop near_large").click()
    page.get_by_role("button", name="Drop it").click()
    expect(page.locator('#queries tr[data-key="near_large"]')).to_have_count(0, timeout=PATIENCE)
    expect(page.locator(".node[data-shared]")).to_have_count(0, timeout=PATIENCE)
    expect(page.locator(".node.is-join")).to_have_count(1)
