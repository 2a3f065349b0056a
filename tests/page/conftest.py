"""A browser for the page's tests, visits that end clean, and pictures of what was seen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.page import chromium
from tests.page.light_service import LightService
from tests.seeds import THOROUGH

PICTURES = Path(__file__).parents[2] / "build" / "screenshots"
DESKTOP = {"width": 1440, "height": 960}
# The machine may be busy with other tests: what takes longer than this is missing, not slow.
expect.set_options(timeout=60_000)

Visit = Callable[..., Page]
Picture = Callable[[Page, str], None]


# For a module, not for the session: while it runs, Playwright holds an event loop in this thread that others want.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium; without one the tests fail and say how to get one."""
    found = chromium.find()
    if found is None:
        pytest.fail(chromium.HOW)
    # Chromium's sandbox refuses to run as root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(found), args=arguments)
        yield started
        started.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Opens the page; at the end there must have been no error in it and nothing that its policy forbids."""
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def said(message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text or "Uncaught" in message.text:
            wrong.append(message.text)

    def opened(address: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce", **options})
        contexts.append(context)
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", said)
        page.goto(address, timeout=60_000)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not wrong


@pytest.fixture
def picture() -> Picture:
    """Keeps what is to be seen, in build/screenshots, for people: in `make thorough`, or with STREAMJOIN_PICTURES."""

    def taken(page: Page, name: str) -> None:
        if not (THOROUGH or "STREAMJOIN_PICTURES" in os.environ):
            return
        PICTURES.mkdir(parents=True, exist_ok=True)
        page.evaluate("scrollTo(0, 0)")
        whole = page.locator("dialog[open]").count() == 0
        page.screenshot(path=PICTURES / f"{name}.png", full_page=whole, animations="disabled")

    return taken


@pytest.fixture(scope="module")
def shared_service() -> Iterator[LightService]:
    with LightService() as started:
        yield started


@pytest.fixture
def service(shared_service: LightService) -> Iterator[LightService]:
    """The service over an engine without Spark, with no queries."""
    yield shared_service
    shared_service.clear()


def live(page: Page) -> Page:
    """The page once it is in step with the service."""
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    return page
