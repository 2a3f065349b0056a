"""A query's life on the page: typed, previewed, created, its rows and its part of the plan, paused, dropped."""

from __future__ import annotations

import re
from dataclasses import replace

from playwright.sync_api import Page, expect

from tests.page.conftest import Picture, Visit, live
from tests.page.light_service import NEAR, NEAR_LARGE, LightService


def typed(page: Page, sql: str, name: str) -> None:
    """As a person does it: each key, whatever the suggestions make of it."""
    page.locator("#sql").click()
    for number, line in enumerate(sql.splitlines()):
        if number:
            page.keyboard.press("Escape")
            page.keyboard.press("Enter")
        page.keyboard.type(line)
    page.keyboard.press("Escape")
    expect(page.locator("#sql")).to_have_value(sql)
    page.get_by_label("Name (optional)").fill(name)
    expect(page.locator(".preview")).to_be_visible()
    page.get_by_role("button", name="Create query").click()
    expect(page.locator(f'#queries tr[data-key="{name}"]')).to_be_visible()


def test_a_query_is_typed_shares_its_join_and_is_dropped(service: LightService, visit: Visit, picture: Picture) -> None:
    page = live(visit(service.address))
    expect(page.get_by_text("No queries yet")).to_be_visible()
    picture(page, "empty")

    typed(page, NEAR, "near")
    expect(page.get_by_role("heading", name="Rows of near")).to_be_in_viewport()
    expect(page.locator("#rows tbody tr").nth(20)).to_be_visible()
    expect(page.locator("#rows tbody tr").first.locator("td")).to_have_count(3)
    joins = page.locator(".node.is-join")
    expect(joins).to_have_count(1)
    expect(page.locator(".node[data-shared]")).to_have_count(0)
    picture(page, "one-query")

    page.locator("#sql").fill(NEAR_LARGE)
    expect(page.locator(".preview")).to_contain_text("Would share all its joins with near")
    # Rows of the newest tuples, counted without the service: all of them have what the query asks for.
    sample = page.locator(".preview tbody tr")
    expect(page.locator(".preview")).to_contain_text(re.compile(r"newest tuples \(\d+ of .+\) give \d+ rows"))
    expect(sample).to_have_count(5)
    expect(sample.first.locator("td")).to_have_count(3)
    picture(page, "preview")
    page.locator("#sql").fill("")
    typed(page, NEAR_LARGE, "near_large")
    expect(joins).to_have_count(1)
    expect(page.locator(".node.is-join[data-shared]")).to_have_attribute(
        "aria-label", re.compile("shared by near and near_large")
    )
    expect(page.locator(".node.is-join .sharing")).to_have_text("×2")
    expect(page.locator(".node.is-sink")).to_have_count(2)
    picture(page, "two-queries")

    page.get_by_role("button", name="Drop near_large").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Drop near_large?")
    picture(page, "drop")
    dialog.get_by_role("button", name="Drop it").click()
    expect(page.locator('#queries tr[data-key="near_large"]')).to_have_count(0)
    expect(page.locator(".node.is-sink")).to_have_count(1)
    expect(page.locator(".node[data-shared]")).to_have_count(0)
    assert [info.name for info in service.engine.queries()] == ["near"]


def test_a_drop_can_be_thought_better_of(service: LightService, visit: Visit) -> None:
    service.engine.create(NEAR, "near")
    page = live(visit(service.address))
    button = page.get_by_role("button", name="Drop near")
    button.click()
    expect(page.get_by_role("button", name="Keep it")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(button).to_be_focused()
    assert [info.name for info in service.engine.queries()] == ["near"]


def test_a_query_is_paused_and_resumed(service: LightService, visit: Visit) -> None:
    service.engine.create(NEAR, "near")
    page = live(visit(service.address))
    row = page.locator('#queries tr[data-key="near"]')
    page.get_by_role("button", name="Pause near").click()
    expect(row).to_contain_text("paused")
    assert service.engine.query("near").state == "paused"
    page.get_by_role("button", name="Resume near").click()
    expect(row).to_contain_text("running")


def test_rows_can_be_held_and_let_go(service: LightService, visit: Visit) -> None:
    service.engine.create(NEAR, "near")
    page = live(visit(service.address))
    page.get_by_role("button", name="near", exact=True).click()
    rows = page.locator("#rows tbody tr")
    expect(rows.nth(5)).to_be_visible()
    page.get_by_role("button", name="Hold").click()
    expect(page.locator("#rows-summary")).to_contain_text("held back")
    newest = """() => [...document.querySelector("#rows tbody").rows].slice(0, 20).map((row) => row.textContent)"""
    held = page.evaluate(newest)
    expect(page.locator("#rows-summary")).to_contain_text(re.compile(r"\d\d newer rows held back"))
    assert page.evaluate(newest) == held
    page.get_by_role("button", name="Let go").click()
    page.wait_for_function(f"held => ({newest})().join() !== held.join()", arg=held)
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#rows")).to_be_hidden()
    expect(page.get_by_role("button", name="near", exact=True)).to_be_focused()


def test_the_rows_shown_are_the_rows_there_are(service: LightService, visit: Visit) -> None:
    """None twice and none left out while the page follows. Few enough that all are kept, however slow the page is."""
    page = live(visit(service.address))
    service.engine.create(f"{NEAR}\nWHERE t.qty > 7 AND t.sym = 'ACME'", "few")
    page.get_by_role("button", name="few", exact=True).click()
    expect(page.locator("#rows tbody tr").nth(20)).to_be_visible()
    page.get_by_role("button", name="Hold").click()
    shown = page.locator("#rows tbody").evaluate(
        "body => [...body.rows].map(row => [...row.cells].map(c => c.textContent)).reverse()"
    )
    there = [[str(value) for value in row.values()] for row in service.engine.newest("few", 1000).table.to_pylist()]
    assert len(there) < 1000
    assert any(there[start : start + len(shown)] == shown for start in range(len(there)))


def test_a_query_of_another_client_shows_up_and_goes(service: LightService, visit: Visit) -> None:
    page = live(visit(service.address))
    expect(page.get_by_text("No queries yet")).to_be_visible()
    service.engine.create(NEAR, "from_elsewhere")
    expect(page.locator('#queries tr[data-key="from_elsewhere"]')).to_be_visible()
    expect(page.locator("#activity")).to_contain_text("from_elsewhere created")
    page.get_by_role("button", name="from_elsewhere", exact=True).click()
    expect(page.locator("#rows tbody tr").first).to_be_visible()
    service.engine.drop("from_elsewhere")
    expect(page.get_by_text("No queries yet")).to_be_visible()
    expect(page.locator("#rows")).to_be_hidden()
    expect(page.locator("#activity")).to_contain_text("from_elsewhere dropped")


def test_a_query_that_failed_says_why(service: LightService, visit: Visit, picture: Picture) -> None:
    service.engine.create(NEAR, "near")
    failed = replace(
        service.engine.query("near"), state="failed", error="the disk is full", rows_undelivered=7, rows_missed=1
    )
    page = visit("about:blank")
    page.route(re.compile("/api/v1/queries$"), lambda route: route.fulfill(json={"queries": [failed.as_json()]}))
    page.goto(service.address)
    row = page.locator('#queries tr[data-key="near"]')
    expect(row).to_contain_text("failed")
    told = "The disk is full. Waiting for the sink: 7 rows. Missed because the spool was full: 1 row."
    expect(row).to_contain_text(told)
    expect(page.locator("#figures")).to_contain_text("1 failed")
    with page.expect_request("**/api/v1/queries/near/resume"):
        row.get_by_role("button", name="Resume near").click()
    picture(page, "failed")


def test_a_query_whose_stream_fails_is_degraded_until_it_is_read_again(
    service: LightService, visit: Visit, picture: Picture
) -> None:
    service.engine.create(NEAR, "near")
    service.engine.create(NEAR_LARGE, "near_large")
    page = live(visit(service.address))
    page.get_by_role("button", name="near", exact=True).click()
    tile = page.locator("#figures .figure", has_text="Queries running")
    row = page.locator('#queries tr[data-key="near"]')
    expect(tile).to_contain_text("2 of 2")
    expect(page.locator("#queries-summary")).to_have_text("2 of 2 running")
    service.engine.fail_stream("trades", "stream 'trades' failed: no broker", 1)
    expect(row.locator(".badge")).to_have_attribute("data-state", "degraded")
    expect(row).to_contain_text("Stream 'trades' failed: no broker.")
    expect(tile).to_contain_text("0 of 2")
    expect(tile).to_contain_text("2 degraded")
    expect(page.locator("#queries-summary")).to_have_text("0 of 2 running, 2 degraded")
    expect(page.locator("#rows-tools .badge")).to_have_text("degraded")
    expect(page.locator("#rows-problem")).to_have_text("Stream 'trades' failed: no broker.")
    expect(row.get_by_role("button", name="Pause near")).to_be_enabled()
    picture(page, "degraded")
    service.engine.recover_stream("trades")
    expect(row.locator(".badge")).to_have_attribute("data-state", "running")
    expect(tile).to_contain_text("2 of 2")
    expect(page.locator("#rows-problem")).to_be_hidden()


def test_the_table_sorts_and_shows_sql_in_full(service: LightService, visit: Visit) -> None:
    for name, text in (("b", NEAR_LARGE), ("a", NEAR), ("c", NEAR)):
        service.engine.create(text, name)
    page = live(visit(service.address))
    names = page.locator("#queries .entry")
    expect(names).to_have_text(["b", "a", "c"])
    page.get_by_role("button", name="Query", exact=True).click()
    expect(names).to_have_text(["a", "b", "c"])
    page.get_by_role("button", name="Query", exact=True).click()
    expect(names).to_have_text(["c", "b", "a"])
    expect(page.get_by_role("columnheader", name="Query")).to_have_attribute("aria-sort", "descending")
    page.get_by_role("button", name="Age").click()
    expect(names).to_have_text(["b", "a", "c"])
    row = page.locator('#queries tr[data-key="b"]')
    expect(row.locator('[data-part="cost"]')).to_contain_text("%")
    # Anywhere in the row; another click closes it again.
    for part in (".sql", '[data-part="age"]'):
        row.locator(part).click()
        expect(page.locator("#rows .rows-sql")).to_have_text(NEAR_LARGE)
        expect(page.locator("#rows")).to_be_in_viewport()
        row.locator('[data-part="state"]').click()
        expect(page.locator("#rows")).to_be_hidden()
    # An order by figures stays for who points into the list, whatever the figures become.
    page.get_by_role("button", name="Rows", exact=True).click()
    row.hover()
    before = names.all_inner_texts()
    script = """async () => {
        const { change, state } = await import("/static/store.js");
        change({ queries: state.queries.map((query, index) => ({ ...query, rows: 10 ** (9 - index) })) });
        await Promise.resolve();
        change({ queries: state.queries.map((query, index) => ({ ...query, rows: 10 ** index })) });
        await Promise.resolve();
    }"""
    page.evaluate(script)
    assert names.all_inner_texts() == before


def test_a_step_tells_why_it_is_there(service: LightService, visit: Visit, picture: Picture) -> None:
    service.engine.create(NEAR, "near")
    service.engine.create(NEAR_LARGE, "near_large")
    page = live(visit(service.address))
    page.locator(".node.is-join").click()
    about = page.get_by_role("region", name="About the chosen step")
    expect(about).to_contain_text("Shared")
    expect(about).to_contain_text("Apart")
    expect(about).to_contain_text("Why it is here")
    expect(about).to_contain_text("A new query found steps like its own running, and uses them.")
    picture(page, "step")
    about.get_by_role("button", name="near_large").click()
    expect(page.get_by_role("heading", name="Rows of near_large")).to_be_visible()
    expect(page.locator('[data-key="sink:near"]')).to_have_attribute("data-away", "")
    about.get_by_role("button", name="Close").click()
    expect(about).to_be_hidden()
