"""Why something is slow: latency by stage, steps, streams, the running batch; and a page that never waits for it."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import pyarrow.parquet
import pytest
from playwright.sync_api import Page, expect

from tests.page.axe import violations
from tests.page.conftest import Picture, Visit, live
from tests.page.light_service import NEAR, LightService
from tests.service.held_engine import hold

SCAN = "SELECT t.px FROM trades AS t JOIN quotes AS q WITHIN 5 SECONDS ON t.px < q.bid"


def test_a_sink_shows_its_rows_and_where_its_time_goes(service: LightService, visit: Visit, picture: Picture) -> None:
    service.engine.create(NEAR, "near")
    page = live(visit(service.address))
    page.locator(".node.is-sink").click()
    expect(page.get_by_role("heading", name="Rows of near")).to_be_visible()
    why = page.locator("#why")
    expect(why.locator(".stages li")).to_have_count(6)
    expect(why.locator("#why-summary")).to_have_text(re.compile(r"^\S+ m?s from arrival to sink$"))
    shares = [float(text.split()[0]) for text in why.locator(".stages li span.number").all_inner_texts()]
    assert 99 < sum(shares) < 101
    step = why.get_by_role("region", name="Join steps of near").locator("tbody tr")
    expect(step).to_have_count(1)
    expect(step).to_contain_text("quotes ⋈ trades")
    expect(step.locator("td").first).to_have_text(re.compile(r"[\d.,]+ ms"))
    streams = why.get_by_role("region", name="Streams of near").locator("tbody tr")
    expect(streams).to_have_count(2)
    expect(streams.locator("td").last).to_have_text(re.compile("%$"))
    # The bar of a step is its share of the time of all joins: of the only one, all of it.
    bar = page.locator(".node.is-join .heat")
    assert (bar.get_attribute("data-level"), float(bar.get_attribute("width") or 0) > 140) == ("high", True)
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save the newest rows of near as Parquet").click()
    assert pyarrow.parquet.read_table(saving.value.path()).column_names == ["sym", "px", "ask"]
    picture(page, "why")


def test_panels_are_there_while_a_batch_never_ends(visit: Visit, picture: Picture) -> None:
    with LightService() as service:
        service.engine.create(NEAR, "near")
        page = live(visit(service.address))
        expect(page.locator(".node.is-join")).to_be_visible()
        expect(page.locator("#running")).to_be_hidden()
        held = hold(service.engine)
        try:
            assert held.entered.wait(60)
            page.reload()
            # Everything that does not need the batch is there at once, the plan as it was last known.
            expect(page.locator("#queries tbody tr")).to_have_count(1)
            expect(page.locator("#streams li.stream")).to_have_count(3)
            expect(page.locator(".chart")).to_be_visible()
            expect(page.locator(".node.is-join")).to_be_visible()
            expect(page.locator("#running")).to_have_text(re.compile(r"Batch \d+ has been running for \d+ s, joining"))
            assert violations(page) == []
            picture(page, "batch-running")
        finally:
            held.released.set()
        expect(page.locator("#running")).to_be_hidden()


def test_an_old_plan_says_how_old_it_is(service: LightService, visit: Visit) -> None:
    service.engine.create(NEAR, "near")
    page = visit("about:blank")

    def aged(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "at": time.time() - 75})

    page.route("**/api/v1/plan*", aged)
    page.goto(service.address)
    expect(page.locator("#plan-age")).to_have_text("as it was 1 min ago")


def test_an_expensive_query_wants_to_be_confirmed(
    service: LightService, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.engine, "settings", replace(service.engine.settings, scan_pairs=1))
    page = live(visit(service.address))
    create = page.get_by_role("button", name="Create query")
    page.locator("#sql").fill(SCAN)
    expect(page.locator(".concern")).to_contain_text("every pair within the window is compared")
    expect(create).to_have_attribute("aria-disabled", "true")
    page.get_by_label("Name (optional)").fill("scan")
    page.get_by_label("Create it nevertheless").check()
    expect(create).to_have_attribute("aria-disabled", "false")
    create.click()
    expect(page.get_by_role("heading", name="Rows of scan")).to_be_visible()
    # Another text is another question.
    page.locator("#sql").fill(SCAN.replace("<", ">"))
    expect(page.get_by_label("Create it nevertheless")).not_to_be_checked()
    costs = "({ warning: null, needs_allow_scan: false, cost_shared: %d })"
    script = f"""async () => {{
        const {{ concernOf }} = await import("/static/preview.js");
        return [{costs % 2e6}, {costs % 9e4}].map((one) => concernOf(one, {{ cost_shared: 1e6 }}));
    }}"""
    added = "It adds 2.0M matches a batch; all queries together find 1.0M matches a batch."
    assert page.evaluate(script) == [added, None]


def test_advice_fits_the_settings_in_force(service: LightService, visit: Visit) -> None:
    service.engine.create(NEAR, "near")
    page = live(visit(service.address))
    page.locator("#queries tbody tr").click()
    expect(page.locator("#why .advice")).to_be_visible()
    script = """async (trigger) => {
        const { change, state } = await import("/static/store.js");
        const latency = { source: 900, read: 1, queue: 1, join: 1, store: 1, sink: 1 };
        const queries = state.queries.map((query) => ({ ...query, latency }));
        change({ info: { ...state.info, trigger }, queries });
        await Promise.resolve();
        return document.querySelector("#why .advice").textContent;
    }"""
    assert "once in a second (trigger): a shorter one" in page.evaluate(script, "1000 milliseconds")
    assert "once in 250 ms (trigger)" in page.evaluate(script, "250 milliseconds")
    assert "as soon as the engine is free" in page.evaluate(script, None)


def test_what_happened_is_said_in_plain_words(service: LightService, visit: Visit) -> None:
    page = live(visit(service.address))
    service.engine.create(NEAR, "first")
    service.engine.create(f"{NEAR}\nWHERE t.qty > 3", "second")
    happened = page.locator("#activity li")
    expect(happened.filter(has_text="first computes its own join steps: no other query has them")).to_have_count(1)
    expect(happened.filter(has_text="second uses join steps that run already")).to_have_count(1)
    page.get_by_label("Only what happened to a query").fill("second")
    expect(happened.filter(has_text="first")).to_have_count(0)
    expect(happened.filter(has_text="second created")).to_have_count(1)
    words = page.evaluate(
        """async () => {
            const { happenings } = await import("/static/activity.js");
            const change = (rule, figures) => ({ rule, queries: ["a", "b"], figures, what: "", why: "" });
            const moved = { "cost before": 100, "cost after": 60 };
            const changes = ["group_by_cost", "reorder_joins"].map((rule) => change(rule, moved));
            const sample = { batch: 1, at: 1, plan_changes: changes };
            const failed = { serial: 1, action: "pause", name: "a", reason: "too many rows", at: 2, batch: 2 };
            return happenings({ samples: [sample], changes: [failed] }).map(({ words }) => words);
        }"""
    )
    assert words == [
        "2 queries of the same join (a and b) are computed in other groups, which saves 40 % of their work",
        "a and b join the streams in another order, which saves 40 % of their work",
        "a failed: too many rows",
    ]
    # Hundreds at once are a few lines.
    words = page.evaluate(
        """async () => {
            const { happenings } = await import("/static/activity.js");
            const all = Array.from({ length: 300 }, (_, number) => `q${number}`);
            const figures = (shared) => ({ "shared steps": shared, steps: 2 });
            const shared = (name, at) => ({ rule: "share_eagerly", queries: [name], figures: figures(at ? 2 : 0) });
            const created = (name, serial) => ({ serial, action: "create", name, batch: 7, at: 1, reason: null });
            const [plan_changes, changes] = [all.map(shared), all.map(created)];
            return happenings({ samples: [{ batch: 7, at: 2, plan_changes }], changes }).map(({ words }) => words);
        }"""
    )
    assert words == [
        "q0, q1 and 298 more created",
        "q0 computes its own join steps: no other query has them",
        "q1, q2 and 297 more use join steps that run already",
    ]


def history(now: float) -> dict[str, object]:
    """A minute of batches, then nothing, then some more up to half a minute ago; one took very long."""
    times = [*range(150, 90, -1), *range(60, 30, -1)]
    sample = {"rows_in": {"a": 100}, "rows_out": {"q": 10}, "state_bytes": 1, "partitions": 0, "latency_ms": 9.0}
    stages = {"changes": 0.0, "arrivals": 0.001, "joining": 0.006, "storing": 0.002, "sinks": 0.0005}
    samples = [
        {**sample, "batch": number, "at": now - ago, "seconds": 9.0 if number == 20 else 0.01, "stages": stages}
        for number, ago in enumerate(times)
    ]
    return {"samples": samples, "next": None}


def paths(page: Page, selector: str) -> str:
    return page.locator(selector).first.get_attribute("d") or ""


def test_charts_have_gaps_end_now_and_are_not_ruled_by_one_outlier(
    service: LightService, visit: Visit, picture: Picture
) -> None:
    page = visit("about:blank")
    page.route("**/api/v1/history", lambda route: route.fulfill(json=history(time.time())))
    page.route(
        "**/api/v1/events", lambda route: route.fulfill(body=": connected\n\n", content_type="text/event-stream")
    )
    page.goto(service.address)
    expect(page.locator(".chart")).to_be_visible()
    # Two parts: no line over the time in which nothing ran.
    assert paths(page, ".chart .inLine").count("M") == 2
    numbers = [float(part.split()[0]) for part in re.split("[ML]", paths(page, ".chart .inLine")) if part]
    box = page.locator(".chart").bounding_box()
    assert box is not None
    # The last batch was half a minute ago, and the axis goes on until now.
    assert box["width"] * 0.7 < max(numbers) < box["width"] * 0.9
    # The outlier is an arrow with its value; the others use the height of the scale.
    expect(page.locator(".clipped path")).to_have_count(1)
    expect(page.locator(".clipped title")).to_have_text("9,000 ms")
    expect(page.locator(".stacks path")).to_have_count(5)
    heights = [float(part.split()[1]) for part in re.split("[MLZ]", paths(page, ".stacks .is-other")) if part]
    lane = 46
    assert sorted(heights)[len(heights) // 4] < 248 + lane * 0.6
    tops = page.evaluate(
        """async () => {
            const { usual } = await import("/static/format.js");
            return [usual([1, 2, 3]), usual([]), usual([...Array(99).fill(2), 900])];
        }"""
    )
    assert tops == [3, 0, 3]
    picture(page, "gaps")


def test_the_page_says_how_far_streams_have_caught_up(service: LightService, visit: Visit) -> None:
    catch_up = service.engine._catalog.streams["trades"].catch_up
    catch_up.note(0, 100)
    catch_up.note(41, 59)
    page = live(visit(service.address))
    expect(page.locator("#running")).to_have_text(re.compile(r"^Catching up: 41 %, \d+ s"))
    catch_up.stop()
    expect(page.locator("#running")).to_be_hidden()
