"""The page with no query and with hundreds: readable, quick, accessible, by keyboard alone, at every width."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.page.axe import violations
from tests.page.conftest import Picture, Visit, live
from tests.page.light_service import LightService
from tests.page.many_queries import grow

WIDTHS = (390, 768, 1280, 1920)
SPILLING = """() => [...document.querySelectorAll(".node")].filter((node) => {
    const box = node.querySelector(".box").getBoundingClientRect();
    return [...node.querySelectorAll(".label, .detail")].some((text) => text.getBoundingClientRect().right > box.right);
}).map((node) => node.textContent)"""


@pytest.fixture(scope="module")
def growing() -> Iterator[LightService]:
    """One engine for all numbers of queries, from few to many."""
    with LightService() as service:
        yield service


def drawn(page: Page) -> int:
    return page.locator(".node").count()


@pytest.mark.parametrize(
    ("queries", "scheme", "looked_at"),
    [
        (0, "light", 390),
        (3, "dark", 1920),
        (30, "light", 768),
        (150, "dark", 1280),
        pytest.param(500, "light", 1920, marks=pytest.mark.thorough),
    ],
)
def test_any_number_of_queries_at_any_width(
    queries: int, scheme: str, looked_at: int, growing: LightService, visit: Visit, picture: Picture
) -> None:
    grow(growing, queries)
    page = live(visit(growing.address, color_scheme=scheme))
    if queries:
        expect(page.locator("#queries tbody tr")).to_have_count(queries)
        expect(page.locator(".node.is-sink").first).to_be_visible()
        # A large plan is folded: what is drawn can be read, and starts at the sources.
        assert drawn(page) <= 60
        scroll = page.locator("#plan-scroll").bounding_box()
        boxes = [source.bounding_box() for source in page.locator(".node.is-source").all()]
        assert scroll is not None
        seen = [box for box in boxes if box is not None and scroll["x"] <= box["x"] < scroll["x"] + scroll["width"]]
        assert seen
        assert page.evaluate(SPILLING) == []
    else:
        expect(page.locator("#queries")).to_contain_text("No queries yet")
        expect(page.locator("#plan")).to_contain_text("Nothing to join yet")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        if width == looked_at:
            # The same page with longer lists; checking 500 of their rows takes most of a minute.
            assert queries == 500 or violations(page) == []
            picture(page, f"{queries}-queries-{width}-{scheme}")


def test_equal_branches_unfold_and_a_path_is_lit_by_keyboard_alone(growing: LightService, visit: Visit) -> None:
    grow(growing, 150)
    page = live(visit(growing.address))
    expect(page.locator(".node[data-folded]").first).to_be_visible()
    before = drawn(page)
    folded = page.locator(".node.is-sink[data-folded]").first
    name = folded.get_attribute("aria-label") or ""
    assert re.search(r"\d+ queries, .* select to unfold", name)
    # From the field before the plan: the whole plan is one stop, arrows walk in it.
    field = page.get_by_label("Light the path of a query")
    field.focus()
    while not page.evaluate("document.activeElement.classList.contains('node')"):
        page.keyboard.press("Tab")
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    while page.evaluate("!document.activeElement.hasAttribute('data-folded')"):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".node")).not_to_have_count(before)
    assert before < drawn(page) <= before + 25
    page.get_by_role("button", name="Fold", exact=True).press("Enter")
    expect(page.locator(".node")).to_have_count(before)
    # The path of one query is shown step by step, the rest is dimmed.
    field.fill("query_007")
    lit = page.locator(".node:not([data-away])")
    expect(page.locator(".node.is-sink:not([data-away]) .label")).to_have_text("query_007")
    assert lit.count() >= 4
    assert lit.count() + page.locator(".node[data-away]").count() == drawn(page)
    for kind in ("source", "selection", "join", "sink"):
        assert page.locator(f".node.is-{kind}:not([data-away])").count() >= 1
    assert page.locator(".edge:not([data-away])").count() >= 4
    field.fill("")
    # A query of the table, its time and its rows, and a file of them.
    page.get_by_label("Find a query by its name or SQL").fill("query_007")
    page.get_by_role("button", name="query_007", exact=True).press("Enter")
    expect(page.get_by_role("heading", name="Where the time of query_007 goes")).to_be_visible()
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save the newest rows of query_007 as CSV").press("Enter")
    assert saving.value.suggested_filename == "query_007.csv"
    assert saving.value.path().read_text().splitlines()[0] == '"sym","bid"'
