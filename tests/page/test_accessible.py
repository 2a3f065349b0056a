"""Usable by all: names, order, contrast and size of things, in light and dark, on a small window, without motion."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.page.axe import violations
from tests.page.conftest import Picture, Visit, live
from tests.page.light_service import NEAR, NEAR_LARGE, LightService

CHECKS = Path(__file__).with_name("accessibility.js").read_text()
GROUNDS = ("--ground", "--surface", "--sunken", "--raised")
# Text, and the grounds on which it is used.
TEXTS = {
    **dict.fromkeys(("--text", "--quiet", "--accent", "--bad"), GROUNDS),
    **{f"--code-{name}": ("--surface", "--sunken") for name in ("keyword", "string", "number", "stream")},
    "--good": ("--good-soft",),
    "--warn": ("--warn-soft",),
    "--shared": ("--shared-soft",),
    "--on-accent": ("--accent",),
    "--surface": ("--shared",),
}
# Lines and shapes that mean something.
SHAPES = {
    **dict.fromkeys(("--edge", "--accent", "--shared", "--good", "--warn", "--bad"), ("--surface", "--raised")),
    **dict.fromkeys([f"--stage-{number}" for number in range(1, 7)], ("--surface",)),
}


def everything(page: Page, service: LightService) -> Page:
    """All parts of the page open at once."""
    service.engine.create(NEAR, "near")
    service.engine.create(NEAR_LARGE, "near_large")
    service.engine.pause("near_large")
    live(page)
    page.get_by_role("button", name="near", exact=True).click()
    page.locator(".node.is-join").click()
    page.locator(".stream summary").first.click()
    page.locator("#sql").fill(NEAR.replace("px,", "price,"))
    expect(page.locator("#verdict-words")).to_contain_text("price")
    expect(page.locator("#rows tbody tr").nth(3)).to_be_visible()
    expect(page.locator("#queries")).to_contain_text("paused")
    page.evaluate(CHECKS)
    return page


def test_nothing_to_complain_of(service: LightService, visit: Visit, picture: Picture) -> None:
    page = everything(visit(service.address), service)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert violations(page) == []
        assert page.evaluate("complaints()") == []
        picture(page, f"everything-{scheme}")
    for width in (360, 768):
        page.set_viewport_size({"width": width, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate("complaints()") == []
        picture(page, f"width-{width}")


def test_the_colours_can_be_told_apart(service: LightService, visit: Visit) -> None:
    page = visit(service.address)
    page.evaluate(CHECKS)
    weak = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for pairs, least in ((TEXTS, 4.5), (SHAPES, 3.0)):
            for front, backs in pairs.items():
                for back in backs:
                    found = page.evaluate("([front, back]) => contrastOf(front, back)", [front, back])
                    weak += [f"{scheme}: {front} on {back}: {found:.2f}"] if found < least else []
    assert weak == []


def test_the_focus_goes_through_the_page_in_order_and_shows(service: LightService, visit: Visit) -> None:
    page = everything(visit(service.address), service)
    page.evaluate("document.activeElement.blur(); getSelection().removeAllRanges()")
    page.locator("body").evaluate("body => { body.tabIndex = -1; body.focus(); body.removeAttribute('tabindex'); }")
    places: list[int] = []
    hidden: list[str] = []
    for _ in range(100):
        page.keyboard.press("Tab")
        now = page.evaluate("focusNow()")
        if now is None or (places and now["place"] == places[0]):
            break
        places.append(now["place"])
        hidden += [] if now["shows"] else [now["told"]]
    else:
        pytest.fail("the focus never leaves the page")
    assert hidden == []
    assert places == sorted(places)
    assert len(places) > 20


def test_the_theme_is_the_systems_until_it_is_chosen(service: LightService, visit: Visit) -> None:
    page = live(visit(service.address, color_scheme="light"))
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    assert light != dark
    page.get_by_role("button", name="Use the light theme").click()
    assert page.evaluate(ground) == light
    page.reload()
    assert page.evaluate(ground) == light
    page.get_by_role("button", name="Use the dark theme").click()
    assert page.evaluate(ground) == dark
    page.emulate_media(color_scheme="light")
    assert page.evaluate(ground) == light, "choosing what the system has is to follow it again"


def test_nothing_moves_for_who_wants_no_motion(service: LightService, visit: Visit) -> None:
    page = live(visit(service.address))
    page.evaluate(
        """() => {
            globalThis.moved = [];
            for (const kind of ["animationstart", "transitionrun"])
                document.addEventListener(kind, (event) => moved.push(`${kind} ${event.target.className}`), true);
        }"""
    )
    service.engine.create(NEAR, "near")
    expect(page.locator(".node.is-join")).to_be_visible()
    places = "[...document.querySelectorAll('.node')].map((node) => node.getAttribute('transform'))"
    service.engine.create(NEAR_LARGE, "near_large")
    expect(page.locator(".node.is-sink")).to_have_count(2)
    later = "new Promise((done) => requestAnimationFrame(() => done()))"
    assert page.evaluate(f"(async () => {{ const at = {places}; await {later}; return at + '' === {places} + ''; }})()")
    service.engine.drop("near")
    expect(page.locator(".node.is-sink")).to_have_count(1)
    assert page.evaluate("moved") == []


def test_what_goes_and_moves_is_seen_to_go_and_move(service: LightService, visit: Visit) -> None:
    page = live(visit(service.address, reduced_motion="no-preference"))
    service.engine.create(NEAR, "near")
    service.engine.create(NEAR_LARGE, "near_large")
    expect(page.locator(".node.is-sink")).to_have_count(2)
    page.evaluate(
        """() => {
            globalThis.ghosts = 0;
            const count = (changes) => { globalThis.ghosts += changes.length; };
            const layer = document.querySelector(".plan-graph > g:nth-of-type(2)");
            new MutationObserver(count).observe(layer, { childList: true });
        }"""
    )
    service.engine.drop("near_large")
    page.wait_for_function("() => globalThis.ghosts >= 2")
    expect(page.locator(".ghost")).to_have_count(0)
