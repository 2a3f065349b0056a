"""Nothing jumps and nothing is cut off, whatever the figures become: with 0, 3, 40 and 200 queries, at every width."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import Visit, live
from tests.page.light_service import LightService
from tests.page.many_queries import grow

WIDTHS = (390, 768, 1280, 1920)
UPDATES = 60
"""As many as a minute has at a batch a second, where they are quick to draw."""
WORDS = r"share_eagerly|group_by_cost|reorder_joins|\bgroup \d|\bs\d\.|partial|cardinal|selectiv"
OTHERS = {
    "around": (
        "SELECT t.sym, count(*) AS n FROM trades t WINDOW JOIN quotes q ON t.sym = q.sym "
        "RANGE BETWEEN 5 SECONDS PRECEDING AND CURRENT ROW EXCLUDE PREVAILING"
    ),
    "grouped": (
        "SELECT t.sym, count(*) AS n FROM trades t JOIN quotes q WITHIN 1 SECOND ON t.sym = q.sym "
        "GROUP BY t.sym, HOP(t.ts, INTERVAL '1 second', INTERVAL '2 seconds')"
    ),
    "united": "SELECT t.sym FROM trades t UNION ALL SELECT q.sym FROM quotes q",
    "alone": "SELECT t.sym, t.px FROM trades t WHERE t.qty > 3",
}
WATCH = """() => {
    globalThis.shifts = [];
    const element = (node) => (node?.nodeType === 1 ? node : node?.parentElement)?.outerHTML?.slice(0, 90);
    const said = ({ node, previousRect: a, currentRect: b }) => `${element(node)} ${a.x},${a.y} to ${b.x},${b.y}`;
    const noted = (entry) => ({ value: entry.value, what: entry.sources.map(said) });
    // What somebody has asked for may move the rest.
    const unasked = (list) => list.getEntries().filter(({ hadRecentInput }) => !hadRecentInput);
    new PerformanceObserver((list) => shifts.push(...unasked(list).map(noted))).observe({ type: "layout-shift" });
}"""
# Figures as a minute of work might bring them: longer and shorter, with trouble that comes and goes.
UPDATE = """async (updates) => {
    const { addSample, change, state } = await import("/static/store.js");
    const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    // In their panel, wherever the page is scrolled to; that panels stay is what layout shifts tell.
    const place = (one) => {
        const [box, panel] = [one, one.closest("section, header")].map((each) => each.getBoundingClientRect());
        return [box.x - panel.x, box.y - panel.y, box.width, box.height].map(Math.round);
    };
    const all = () => [...document.querySelectorAll("main button, header button")];
    const buttons = () => all().filter((one) => one.checkVisibility()).map((one) => `${one.textContent} ${place(one)}`);
    const before = buttons();
    for (let turn = 0; turn < updates; turn += 1) {
        const size = 10 ** (turn % 7);
        const latency = { source: size, read: 1, queue: 3 * size, join: 7, store: 0.1, sink: size / 3 };
        const figures = { rows: 17 * size, rows_per_second: 1.7 * size, latency_ms: 3.3 * size, latency };
        const flow = (index) => ({ rows_per_second: index * size, candidates_per_second: 3 * index * size });
        const nodes = state.plan.nodes.map((node, n) => ({ ...node, ...flow(n), load: (turn + n) % 7 / 9 }));
        const read = { rows: size, rows_per_second: 2.3 * size, lag_seconds: turn % 3 ? size / 1000 : -0.5 };
        const trouble = { backpressure: turn % 2 ? 0.4 : 0, malformed: turn % 5, untimed: turn % 4, late: 13 * size };
        const running = turn % 3 ? null : { seconds: 9, queries: [], step: [] };
        change({
            queries: state.queries.map((query) => ({ ...query, ...figures })),
            streams: state.streams.map((stream) => ({ ...stream, ...read, ...trouble })),
            plan: { ...state.plan, nodes, at: Date.now() / 1000 - (turn % 4 ? 0 : 60) },
            activity: { running, words: "batch 1 runs", stuck: false },
        });
        const last = state.samples.at(-1);
        const seconds = (turn % 9) ** 3 / 100;
        addSample({ ...last, batch: last.batch + size, at: last.at + 1, seconds, state_bytes: 1000 * size });
        await frame();
    }
    await frame();
    const after = buttons();
    return before.map((button, n) => `${button} then ${after[n]}`).filter((_, n) => before[n] !== after[n]);
}"""
# Texts that end in "…" and have no title that says the rest, and whatever is wider than the page.
CUT = """() => [...document.querySelectorAll("main *, header *")].filter((one) => {
    const clips = ["hidden", "clip"].includes(getComputedStyle(one).overflowX) && one.checkVisibility();
    const unseen = one.closest(".unseen, .cards thead, [aria-hidden=true], pre, textarea, #chart");
    return clips && !unseen && one.scrollWidth > one.clientWidth + 1 && !one.title;
}).map((one) => one.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def growing() -> Iterator[LightService]:
    """One engine for all numbers of queries, from few to many."""
    with LightService() as service:
        yield service


def settled(page: Page, queries: int) -> Page:
    """All panels filled; with queries, one of them chosen."""
    live(page)
    expect(page.locator("main")).not_to_have_attribute("data-loading", "")
    if queries:
        expect(page.locator("#queries tbody tr")).to_have_count(queries)
        page.get_by_role("button", name="query_001", exact=True).click()
        expect(page.locator("#rows tbody tr").first).to_be_visible()
        expect(page.locator("#why .stages li")).to_have_count(6)
    expect(page.locator(".chart")).to_be_visible()
    return page


@pytest.mark.parametrize(
    ("queries", "width"), [(0, 1280), (3, 390), (40, 1280), (40, 768), pytest.param(200, 1920, marks=pytest.mark.slow)]
)
def test_nothing_moves_while_figures_change(queries: int, width: int, growing: LightService, visit: Visit) -> None:
    grow(growing, queries)
    page = visit("about:blank", viewport={"width": width, "height": 900})
    page.add_init_script(f"({WATCH})()")
    page.goto(growing.address)
    # From the first that is drawn on.
    settled(page, queries)
    page.evaluate("scrollTo(0, 0)")
    updates = UPDATES if queries < 200 else UPDATES // 4
    moved = page.evaluate(UPDATE, updates // 2)
    # The list, its rows and where the time goes.
    page.evaluate("document.querySelector('#queries').scrollIntoView()")
    moved += page.evaluate(UPDATE, updates // 2)
    assert moved == []
    shifts = page.evaluate("shifts")
    assert sum(shift["value"] for shift in shifts) < 0.02, sorted(shifts, key=lambda shift: -shift["value"])[:5]


def test_nothing_is_cut_off_and_nothing_is_in_the_engines_own_words(growing: LightService, visit: Visit) -> None:
    grow(growing, 3)
    for name, sql in OTHERS.items():
        growing.engine.create(sql, name)
    page = settled(visit(growing.address), len(growing.engine.queries()))
    expect(page.locator(".node.is-window")).to_contain_text("trades ⋈ quotes")
    expect(page.locator(".node.is-groups")).to_contain_text("windows of 2 s every 1 s")
    for name in ("around", "united"):
        expect(page.get_by_text(f"Sharing: {name} has no join step to share")).to_be_visible()
    page.locator(".node.is-groups").click()
    expect(page.locator("#inspector")).to_contain_text("Open groups")
    page.locator("#sql").fill(OTHERS["around"].replace("5", "3"))
    expect(page.locator(".preview .lead")).to_contain_text(
        "Has no join step to share; tuples are selected, in one pass with"
    )
    page.locator(".node.is-join").first.click()
    page.locator("#sql").fill("SELECT t.sym, t.px FROM trades AS t JOIN quotes AS q WITHIN 5 SECONDS ON t.sym = q.sym")
    expect(page.locator(".preview tbody tr")).to_have_count(5)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(CUT) == [], width
    told = page.evaluate("document.body.innerText")
    assert re.findall(WORDS, told) == []
    for name in OTHERS:
        growing.engine.drop(name)


def test_a_path_is_that_of_the_query_of_the_name(growing: LightService, visit: Visit) -> None:
    for name in ("band_7", "band_73"):
        growing.engine.create("SELECT t.px FROM trades t JOIN quotes q WITHIN 2 SECONDS ON t.sym = q.sym", name)
    page = live(visit(growing.address))
    field = page.get_by_label("Light the path of a query")
    lit = page.locator(".node.is-sink:not([data-away]) .label")
    field.fill("band_73")
    expect(lit).to_have_text(["band_73"])
    field.fill("band_7")
    expect(lit).to_have_text(["band_7"])
    # Part of a name finds all that have it.
    field.fill("band_")
    expect(lit).to_have_text(["band_7", "band_73"])
    for name in ("band_7", "band_73"):
        growing.engine.drop(name)
