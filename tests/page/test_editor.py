"""The editor: the engine's message at its place, completion of what is there, and a path without a mouse."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.page.conftest import Picture, Visit, live
from tests.page.light_service import NEAR, LightService

STREAMS = [
    {"name": "trades", "time": "ts", "columns": [["ts", "timestamp[us]"], ["sym", "string"], ["px", "double"]]},
    {"name": "quotes", "time": "ts", "columns": [["ts", "timestamp[us]"], ["sym", "string"], ["bid", "double"]]},
]


def test_a_mistake_is_shown_at_its_place(service: LightService, visit: Visit, picture: Picture) -> None:
    page = live(visit(service.address))
    area = page.get_by_label("SQL of the new query")
    area.fill(NEAR.replace("t.px,", "t.price,"))
    mistake = page.locator("#verdict-words")
    expect(mistake).to_contain_text("t has no column 'price'")
    expect(mistake.get_by_role("button", name="Line 1, column 15: go there")).to_be_visible()
    wrong = page.locator(".code .wrong")
    assert "".join(wrong.all_inner_texts()) == "t.price"
    assert "underline" in wrong.first.evaluate("element => getComputedStyle(element).textDecorationLine")
    expect(area).to_have_attribute("aria-invalid", "true")
    assert "verdict-words" in (area.get_attribute("aria-describedby") or "").split()
    expect(page.get_by_role("status").first).to_contain_text("t has no column 'price'")
    picture(page, "mistake")

    mistake.get_by_role("button").click()
    expect(area).to_be_focused()
    assert area.evaluate("area => area.value.slice(area.selectionStart, area.selectionEnd)") == "t.price"
    expect(page.get_by_role("button", name="Create query")).to_be_disabled()
    page.keyboard.press("Control+Enter")

    area.fill(NEAR)
    expect(page.locator(".preview")).to_contain_text("3 columns")
    expect(area).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator(".wrong")).to_have_count(0)
    assert service.engine.queries() == [], "what was not valid was not created"


def test_the_underline_stays_under_its_text(service: LightService, visit: Visit) -> None:
    """In a later line, after characters that JavaScript counts twice, in a line that wraps."""
    page = live(visit(service.address, viewport={"width": 360, "height": 740}))
    sql = f"{NEAR} AND t.sym <> '𝄞𝄞' AND q.bit > 3"
    page.locator("#sql").fill(sql)
    wrong = page.locator(".code .wrong")
    expect(wrong.first).to_be_visible()
    assert "".join(wrong.all_inner_texts()) == "q.bit"
    # Both layers have the same text in the same box, so the text that is seen is where the caret goes.
    boxes = [page.locator(f".code > {tag}").bounding_box() for tag in ("pre", "textarea")]
    assert boxes[0] == boxes[1]


def test_a_name_that_is_taken_is_said_at_the_name(service: LightService, visit: Visit) -> None:
    service.engine.create(NEAR, "near")
    page = live(visit(service.address))
    page.locator("#sql").fill(NEAR)
    name = page.get_by_label("Name (optional)")
    name.fill("near")
    page.keyboard.press("Enter")
    expect(page.locator("#name-problem")).to_contain_text("already")
    expect(name).to_have_attribute("aria-invalid", "true")
    expect(name).to_be_focused()
    assert len(service.engine.queries()) == 1


def test_what_is_written_while_a_query_is_created_stays(service: LightService, visit: Visit) -> None:
    page = live(visit(service.address))
    waiting: list[Route] = []
    page.route(
        re.compile("/api/v1/queries$"),
        lambda route: waiting.append(route) if route.request.method == "POST" else route.fallback(),
    )

    def create() -> None:
        with page.expect_request(lambda request: request.method == "POST" and request.url.endswith("/queries")):
            page.get_by_role("button", name="Create query").click()
        expect(page.get_by_role("button", name="Creating …")).to_be_disabled()

    page.locator("#sql").fill(NEAR)
    create()
    page.locator("#sql").fill(f"{NEAR} AND t.qty > 2")
    waiting[0].continue_()
    expect(page.locator("#queries tbody tr")).to_have_count(1)
    expect(page.locator("#sql")).to_have_value(f"{NEAR} AND t.qty > 2")
    expect(page.get_by_role("button", name="Create query")).to_be_enabled()

    create()
    page.locator('.node[tabindex="0"]').focus()
    waiting[1].continue_()
    expect(page.locator("#queries tbody tr")).to_have_count(2)
    expect(page.get_by_role("button", name="Creating …")).to_have_count(0)
    expect(page.locator(".node:focus")).to_have_count(1)


def test_streams_and_columns_are_completed(service: LightService, visit: Visit, picture: Picture) -> None:
    page = live(visit(service.address))
    area = page.locator("#sql")
    area.click()
    page.keyboard.type("SELECT t.sym FROM tra")
    options = page.get_by_role("option")
    expect(options).to_have_text([re.compile("trades")])
    page.keyboard.press("Enter")
    page.keyboard.type(" AS t JOIN quotes AS q WITHIN 5 sec")
    page.keyboard.press("Tab")
    page.keyboard.type("ON t.sym = q.")
    expect(options).to_have_text([re.compile(name) for name in ("ts", "sym", "bid", "ask")])
    picture(page, "suggestions")
    page.keyboard.press("ArrowDown")
    expect(area).to_have_attribute("aria-activedescendant", "suggestion-1")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(area).to_have_value("SELECT t.sym FROM trades AS t JOIN quotes AS q WITHIN 5 SECONDS ON t.sym = q.sym")
    expect(page.locator(".preview")).to_be_visible()
    page.keyboard.press("Control+z")
    expect(area).not_to_have_value(re.compile("q.sym$"))


def test_without_a_mouse(service: LightService, visit: Visit) -> None:
    """From the top of the page: to the editor, create, to the plan, to the rows, drop."""
    page = live(visit(service.address))
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the query editor")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Example", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#sql")).to_be_focused()
    expect(page.locator(".preview")).to_be_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") != "sql", "the editor lets go of the focus"
    page.locator("#sql").focus()
    page.keyboard.press("Control+Enter")
    row = page.locator("#queries tbody tr")
    expect(row).to_have_count(1)
    expect(page.locator("#sql")).to_be_focused()

    # The answer to the create, and the plans of the first batches, may still move the focus.
    join, about = page.locator(".node.is-join"), page.get_by_role("region", name="About the chosen step")
    while not page.locator(".node.is-join:focus").count():
        page.locator(".node.is-source").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
    while not about.is_visible():
        join.focus()
        page.keyboard.press("Enter")
    while about.is_visible():
        join.focus()
        page.keyboard.press("Escape")

    page.get_by_role("button", name=re.compile("^Drop ")).focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Drop it")).to_be_focused()
    page.keyboard.press("Enter")
    expect(row).to_have_count(0)
    expect(page.locator("#sql")).to_be_focused()


def completed(page: Page, before: str, after: str = "", asked: bool = False) -> list[str]:
    script = """async ([text, caret, streams, asked]) => {
        const { complete } = await import("/static/sql-language.js");
        return complete(text, caret, streams, asked).options.map(({ text }) => text);
    }"""
    found: list[str] = page.evaluate(script, [before + after, len(before), STREAMS, asked])
    return found


@pytest.fixture
def page(service: LightService, visit: Visit) -> Page:
    return visit(service.address)


def test_what_may_come_at_the_caret(page: Page) -> None:
    assert completed(page, "sel") == ["SELECT"]
    assert completed(page, "SELECT * FROM ", asked=True) == ["trades", "quotes"]
    assert completed(page, "SELECT a.", " FROM quotes AS a") == ["ts", "sym", "bid"]
    assert completed(page, "SELECT a.s", " FROM quotes a") == ["sym"]
    assert completed(page, "SELECT trades.p", " FROM trades") == ["px"]
    assert completed(page, "SELECT b.", " FROM quotes AS a") == []
    assert completed(page, "SELECT * FROM trades WHERE b") == ["BETWEEN", "BY"], "quotes is not in this query"
    assert completed(page, "SELECT * FROM trades t JOIN quotes q WITHIN 3 mi") == ["MILLISECONDS", "MINUTES"]
    assert completed(page, "SELECT * FROM trades t ASOF JOIN quotes q TOLERANCE 3 sec") == ["SECONDS"]
    assert completed(
        page, "SELECT * FROM trades t WINDOW JOIN quotes q ON q.sym = t.sym RANGE BETWEEN 3 SECONDS prec"
    ) == ["PRECEDING"]
    assert completed(page, "SELECT sym, cou", " FROM trades") == ["COUNT"]
    assert completed(page, "SELECT px AS p", " FROM trades") == [], "a new name is the reader's own"
    assert completed(page, "SELECT * FROM trades WHERE sym = 's") == []
    assert completed(page, "SELECT 1 -- s") == []
    assert completed(page, "SELECT * FROM trades") == [], "it is all there"
    names = ["px", "größe", "end", "two words", 'a"b', "1st"]
    written = page.evaluate("async (names) => names.map((await import('/static/sql-language.js')).quoted)", names)
    assert written == ["px", "größe", '"end"', '"two words"', '"a""b"', '"1st"']


def span_of(page: Page, text: str, *place: int) -> str:
    script = """async ([text, [line, column, end_line, end_column]]) => {
        const { spans } = await import("/static/sql-language.js");
        const [{ start, end }] = spans(text, [{ line, column, end_line, end_column, message: "" }]);
        return text.slice(start, end);
    }"""
    found: str = page.evaluate(script, [text, list(place)])
    return found


PLACES = [
    ("SELECT x", (1, 8, 1, 9), "x"),
    ("a\nbc\nd", (2, 1, 2, 3), "bc"),
    ("ab\ncd", (1, 2, 2, 2), "b\nc"),
    ("'𝄞' x", (1, 5, 1, 6), "x"),
    ("SELECT", (1, 7, 1, 8), "T"),
    ("SELECT \n", (2, 1, 2, 2), "T"),
    ("x", (9, 9, 9, 9), "x"),
]


def test_places_become_spans(page: Page) -> None:
    for text, place, wrong in PLACES:
        assert span_of(page, text, *place) == wrong, (text, place)
