"""The drawings: the plan's layout as a property of any graph, many queries folded, the time line read by keys."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

from tests.page.conftest import Picture, Visit, live
from tests.page.light_service import NEAR, LightService

# Random plans: some have joins of joins, some skip layers, one in five closes a circle, which no plan should.
LAYOUTS = """async (tries) => {
    const { layout } = await import("/static/plan-layout.js");
    let seed = 7;
    const random = (n) => ((seed = (seed * 48271) % 2147483647), seed % n);
    const wrong = [];
    for (let turn = 0; turn < tries; turn += 1) {
        const kinds = { source: 1 + random(4), selection: random(6), join: random(9), sink: random(8) };
        const nodes = Object.entries(kinds).flatMap(([kind, many]) =>
            Array.from({ length: many }, (_, index) => ({ id: `${kind} ${index}`, kind })));
        const edges = [];
        nodes.forEach((node, index) => {
            if (!index || node.kind === "source") return;
            for (let count = 1 + random(3); count > 0; count -= 1) {
                const from = nodes[random(index)];
                if (from.kind !== "sink") edges.push({ from: from.id, to: node.id, rate: random(99) });
            }
        });
        if (turn % 5 === 0 && edges.length) edges.push({ from: edges[0].to, to: edges[0].from, rate: 1 });
        const vertical = turn % 2 === 1;
        const options = { width: 100, height: 40, across: 10, along: 30, vertical };
        const found = layout(nodes, edges, options);
        const again = layout(nodes, edges, options);
        const same = JSON.stringify([...found.places]) === JSON.stringify([...again.places]);
        if (!same) wrong.push(`${turn}: not the same twice`);
        const places = [...found.places];
        if (places.length !== nodes.length) wrong.push(`${turn}: nodes are missing`);
        for (const [id, { x, y }] of places) {
            const inside = x > 49.9 && y > 19.9 && x < found.width - 49.9 && y < found.height - 19.9;
            if (!inside) wrong.push(`${turn}: ${id} is outside`);
            for (const [other, place] of places) {
                const near = Math.abs(x - place.x) < 100 && Math.abs(y - place.y) < 40;
                if (id < other && near) wrong.push(`${turn}: ${id} is on ${other}`);
            }
        }
        for (const { from, to } of found.edges) {
            const [start, end] = [found.places.get(from), found.places.get(to)];
            if (vertical ? start.y >= end.y : start.x >= end.x) wrong.push(`${turn}: ${from} to ${to} goes back`);
        }
    }
    return wrong;
}"""


def test_any_graph_is_laid_out_without_overlap_and_forwards(service: LightService, visit: Visit) -> None:
    page = visit(service.address)
    assert page.evaluate(LAYOUTS, 200) == []


def test_a_graph_without_need_of_crossings_has_none(service: LightService, visit: Visit) -> None:
    page = visit(service.address)
    places = page.evaluate(
        """async () => {
            const { layout } = await import("/static/plan-layout.js");
            const nodes = ["a", "b", "c"].map((id) => ({ id, kind: "source" }));
            for (const id of ["C", "A", "B"]) nodes.push({ id, kind: "sink" });
            const edges = ["a", "b", "c"].map((id) => ({ from: id, to: id.toUpperCase() }));
            const found = layout(nodes, edges, { width: 100, height: 40, across: 10, along: 30 });
            return Object.fromEntries([...found.places].map(([id, { y }]) => [id, y]));
        }"""
    )
    for name in "abc":
        assert places[name] == places[name.upper()]


def test_many_queries_of_one_join_are_one_sink(service: LightService, visit: Visit, picture: Picture) -> None:
    for number in range(40):
        service.engine.create(f"{NEAR}\nWHERE t.qty > {number % 9}", f"near_{number:02}")
    page = live(visit(service.address))
    expect(page.locator("#queries tbody tr")).to_have_count(40)
    expect(page.locator(".node.is-sink")).to_have_count(1)
    expect(page.locator(".node.is-sink .label")).to_have_text("40 queries")
    expect(page.locator(".node.is-join .sharing")).to_have_text("×40")
    picture(page, "forty-queries")
    page.get_by_label("Find a query by its name or SQL").fill("qty > 8")
    expect(page.locator("#queries tbody tr")).to_have_count(4)
    expect(page.locator("#queries-summary")).to_have_text("4 of 40 found")


def large_plan(joins: int) -> dict[str, object]:
    """Four streams, a chain of two joins and a sink for each query, labels longer than a box."""
    figures = dict.fromkeys(("rate", "cardinality", "selectivity", "cost_shared", "cost_apart"), 1)
    nodes: list[dict[str, object]] = []
    edges: list[dict[str, object]] = []

    def add(name: str, kind: str, label: str, queries: list[str], *feeders: str) -> str:
        nodes.append({"id": name, "kind": kind, "label": label, "queries": queries, "reason": "", **figures})
        edges.extend({"from": feeder, "to": name, "rate": 1} for feeder in feeders)
        return name

    streams = [add(f"source:{n}", "source", f"stream_{n}", []) for n in range(4)]
    for number in range(joins):
        query = [f"query_{number:03}"]
        label = f"WWWWWWWW ⋈ MMMMMMMMMM_{number}: s.{'wide_' * 12}column = t.column"
        first = add(f"join:{number}", "join", label, query, streams[number % 4], streams[(number + 1) % 4])
        second = add(f"join:{number}b", "join", label, query, first, streams[(number + 2) % 4])
        add(f"sink:{number}", "sink", query[0], query, second)
    return {"nodes": nodes, "edges": edges, "decisions": []}


def seen_by_the_reader(box: Any, window: Any) -> bool:
    return bool(0 <= box["x"] < window["width"] and 0 <= box["y"] < window["height"])


def test_a_large_plan_starts_at_its_sources_and_can_be_seen_whole(
    service: LightService, visit: Visit, picture: Picture
) -> None:
    page = visit("about:blank")
    page.route("**/api/v1/plan*", lambda route: route.fulfill(json=large_plan(150)))
    page.goto(service.address)
    expect(page.locator(".node")).to_have_count(4 + 3 * 150)
    sources = page.locator(".node.is-source").all()
    assert any(seen_by_the_reader(source.bounding_box(), page.viewport_size) for source in sources)
    spilling = page.evaluate(
        """() => [...document.querySelectorAll(".node")].filter((node) => {
            const box = node.querySelector(".box").getBoundingClientRect();
            const texts = [...node.querySelectorAll(".label, .detail")];
            return texts.some((text) => text.getBoundingClientRect().right > box.right);
        }).length"""
    )
    assert spilling == 0
    scroll, graph = page.locator("#plan-scroll"), page.locator(".plan-graph")
    seen = "(box) => [box.scrollWidth <= box.clientWidth + 1, box.scrollHeight <= box.clientHeight + 1]"
    assert scroll.evaluate(seen) != [True, True]
    expect(page.locator(".plan-map")).to_be_visible()
    picture(page, "large-plan")
    page.get_by_role("button", name="Show the whole plan").click()
    assert scroll.evaluate(seen) == [True, True]
    expect(page.locator(".plan-map")).to_be_hidden()
    before = float(graph.get_attribute("width") or 0)
    page.get_by_role("button", name="Draw the plan larger").click()
    assert float(graph.get_attribute("width") or 0) > before
    for _ in range(12):
        page.get_by_role("button", name="Draw the plan larger").click()
    box = scroll.bounding_box()
    assert box is not None
    before = scroll.evaluate("(box) => box.scrollTop")
    page.mouse.move(box["x"] + 200, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 200)
    page.mouse.up()
    assert scroll.evaluate("(box) => box.scrollTop") == before - 140


def test_wider_edges_carry_more(service: LightService, visit: Visit) -> None:
    """Of a plan made for it: rates of 0, 10, 90 and 1000."""
    rates = {"source:a": 1000, "source:b": 90, "source:c": 10, "source:d": 0}
    figures = dict.fromkeys(("rate", "cardinality", "selectivity", "cost_shared", "cost_apart"), 1)
    node = {"queries": ["q"], "reason": "", **figures}
    nodes = [{**node, "id": name, "kind": "source", "label": name[-1]} for name in rates]
    nodes.append({**node, "id": "join", "kind": "join", "label": "a ⋈ b"})
    edges = [{"from": name, "to": "join", "rows_per_second": rate} for name, rate in rates.items()]
    page = visit("about:blank")
    page.route("**/api/v1/plan*", lambda route: route.fulfill(json={"nodes": nodes, "edges": edges, "decisions": []}))
    page.goto(service.address)
    expect(page.locator(".edge")).to_have_count(4)
    drawn = [page.locator(f'.edge[data-key="{name} join"]').get_attribute("stroke-width") for name in rates]
    widths = [float(width or 0) for width in drawn]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 4
    assert widths[-1] > 0, "an edge without rows is still an edge"


def test_a_step_keeps_the_focus_whatever_becomes_of_the_plan(service: LightService, visit: Visit) -> None:
    """Drawn in another order, with other groups, without a step before it, gone for a moment."""
    figures = dict.fromkeys(("rate", "cardinality", "selectivity", "cost_shared", "cost_apart"), 1)

    def plan(*names: str, group: int = 0) -> dict[str, object]:
        kinds = {"a": "source", "b": "source"}
        nodes = [
            {"id": f"{name}:{group}", "kind": kinds.get(name, name), "label": name, "queries": ["q"], **figures}
            for name in names
        ]
        edges = [{"from": f"{name}:{group}", "to": f"join:{group}", "rate": 1} for name in names if name in "ab"]
        return {"nodes": nodes, "edges": edges, "decisions": []}

    page = visit("about:blank")
    page.route("**/api/v1/plan*", lambda route: route.abort())
    page.goto(service.address)
    show = """async (plan) => {
        const { change } = await import("/static/store.js");
        change({ plan });
        await Promise.resolve();
    }"""
    page.evaluate(show, plan("a", "b", "join", "sink"))
    expect(page.locator(".node.is-join")).to_be_visible()
    page.locator(".node.is-join").focus()
    for names, group in ((("join", "sink", "b", "a"), 0), (("b", "join"), 0), (("b", "join", "a"), 1), (("a",), 1)):
        page.evaluate(show, plan(*names, group=group))
        expect(page.locator(".node.is-join:focus")).to_have_count(int("join" in names))
    page.evaluate(show, plan("a", "b", "join", group=2))
    expect(page.locator(".node.is-join:focus")).to_have_count(1)
    page.keyboard.press("Enter")
    about = page.get_by_role("region", name="About the chosen step")
    expect(about).to_be_visible()
    page.evaluate(show, plan("b", "a", "join", group=3))
    expect(about).to_be_visible()
    page.evaluate(show, plan("a", group=3))
    expect(about).to_be_hidden()
    page.evaluate(show, plan("a", "b", "join", group=3))
    expect(about).to_be_visible()
    page.keyboard.press("Escape")
    expect(about).to_be_hidden()
    page.locator("#sql").focus()
    page.evaluate(show, plan("join", "b", "a", group=3))
    expect(page.locator("#sql")).to_be_focused()


def test_the_time_line_is_read_by_keys_and_says_what_happened(service: LightService, visit: Visit) -> None:
    page = live(visit(service.address))
    service.engine.create(NEAR, "near")
    chart = page.get_by_role("slider", name="Throughput, latency and batch time")
    chart.focus()
    page.keyboard.press("Home")
    expect(chart).to_have_attribute("aria-valuenow", "0")
    expect(chart).to_have_attribute("aria-valuetext", re.compile(r"batch \d+: .+ in, .+ out, .+ ms"))
    page.keyboard.press("ArrowRight")
    expect(chart).to_have_attribute("aria-valuenow", "1")
    expect(page.locator("#timeline-reading")).to_have_text(chart.get_attribute("aria-valuetext") or "")
    page.get_by_label("1 min").check()
    for kind, words in (("change", "near created"), ("decision", "near computes its own join steps")):
        expect(page.locator("#activity li", has_text=words).first).to_be_visible()
        expect(page.locator(f".chart .mark.is-{kind}").last).to_be_attached()


def test_latency_is_drawn_also_after_a_reload(service: LightService, visit: Visit) -> None:
    """It comes with the batches that the service remembers, and not by watching."""
    page = live(visit(service.address))
    chart = page.get_by_role("slider", name="Throughput, latency and batch time")
    service.engine.create(NEAR, "delayed")
    for _ in range(2):
        expect(chart).to_have_attribute("aria-valuetext", re.compile(r"out, batch time .+, latency .+ ms$"))
        expect(page.locator(".chart .none")).to_have_count(0)
        page.reload()


def test_rates_are_over_a_second_at_least(service: LightService, visit: Visit) -> None:
    """Batches that come in a burst are no peak, and the first has no other to be measured by."""
    page = visit(service.address)
    script = """async (times) => {
        const { series } = await import("/static/store.js");
        return series(times.map((at) => ({ at, seconds: 0.01, rows_in: { a: 10, b: 5 } })), "rows_in", "a");
    }"""
    assert page.evaluate(script, [0, 1, 2, 3]) == [10, 10, 10, 10]
    assert page.evaluate(script, [0, 0.5, 1, 1.5, 2]) == [10, 10, 20, 20, 20]
    assert max(page.evaluate(script, [0, 1, 2, 2.01, 2.02, 3])) <= 30
    assert page.evaluate(script, [5]) == [10]
