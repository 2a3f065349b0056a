"""When the service is not there: killed and back, not ready yet, behind a token, its engine failed."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from streamjoin.model.errors import StateError
from tests.page.conftest import Picture, Visit, live
from tests.page.light_service import NEAR, LightService


class Process:
    """The service as a process of its own, at one port for all its lives."""

    def __init__(self) -> None:
        self._port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        # The socket listens before the process runs: the first request waits in it, and nobody has to ask again.
        with socket.create_server(("127.0.0.1", self._port)) as listening:
            self._port = listening.getsockname()[1]
            command = [sys.executable, "-m", "tests.page.light_service", str(listening.fileno())]
            self._running = subprocess.Popen(command, pass_fds=[listening.fileno()])

    def kill(self) -> None:
        self._running.kill()
        self._running.wait()


@pytest.fixture
def process() -> Iterator[Process]:
    started = Process()
    yield started
    started.kill()


def test_a_killed_service_is_noticed_and_its_return_too(process: Process, visit: Visit, picture: Picture) -> None:
    page = live(visit(process.address))
    page.locator("#sql").fill(NEAR)
    expect(page.locator(".preview")).to_be_visible()

    process.kill()
    expect(page.locator("#connection")).to_have_text("Disconnected")
    banner = page.locator("#banner")
    expect(banner).to_contain_text("Connection lost. What is shown is old.")
    expect(banner).to_contain_text("Trying again")
    expect(page.locator("main")).to_have_attribute("data-stale", "")
    assert float(page.locator(".figure").first.evaluate("element => getComputedStyle(element).opacity")) < 1
    picture(page, "disconnected")

    page.locator("#sql").fill(f"{NEAR} ")
    expect(page.locator("#verdict-words")).to_contain_text("can't be checked")
    process.start()
    expect(page.locator("#connection")).to_contain_text("Live", timeout=60_000)
    expect(banner).to_be_hidden()
    expect(page.locator("main")).not_to_have_attribute("data-stale", "")
    expect(page.locator("#sql")).to_have_value(f"{NEAR} ")
    expect(page.locator(".preview")).to_be_visible()


def test_the_wait_can_be_cut_short(visit: Visit, service: LightService) -> None:
    page = live(visit(service.address))
    page.route("**/api/v1/**", lambda route: route.abort())
    page.evaluate("fetch('/api/v1/health').catch(() => null)")
    page.reload()
    banner, button = page.locator("#banner"), page.get_by_role("button", name="Try now")
    expect(banner).to_contain_text("The service can't be reached. Trying again in")
    # Every failure makes the wait longer; after a short one it would be live before the button is pressed.
    while not re.search(r"in (\d\d|[6-9]) s", banner.inner_text()):
        button.click()
    page.unroute("**/api/v1/**")
    button.click()
    live(page)


def test_a_token_is_asked_for_and_kept_for_the_tab_only(visit: Visit, picture: Picture) -> None:
    with LightService(token="a-token-of-this-test") as guarded:
        page = visit(guarded.address)
        dialog = page.get_by_role("dialog", name="This service requires a token")
        token = dialog.get_by_label("Token")
        expect(token).to_be_focused()
        picture(page, "token")
        page.keyboard.press("Escape")
        expect(dialog).to_be_visible()
        token.fill("another")
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("alert")).to_have_text("The service did not take this token.")
        expect(token).to_be_focused()
        token.fill("a-token-of-this-test")
        page.keyboard.press("Enter")
        live(page)
        expect(page.locator("#connection")).to_contain_text("batch")
        kept = page.evaluate(
            "[JSON.stringify({ ...localStorage }), document.cookie, JSON.stringify({ ...sessionStorage })]"
        )
        assert ["a-token-of-this-test" in place for place in kept] == [False, False, True]
        assert "a-token-of-this-test" not in page.content()
        guarded.engine.create(NEAR, "near")
        page.get_by_role("button", name="near", exact=True).click()
        expect(page.locator("#rows tbody tr").first).to_be_visible()
        page.reload()
        live(page)


def test_a_service_that_starts_says_so(visit: Visit) -> None:
    with LightService(attached=False) as starting:
        page = visit(starting.address)
        expect(page.locator("#banner")).to_contain_text("the engine is starting")
        expect(page.locator(".skeleton").first).to_be_visible()
        starting.attach()
        live(page)
        expect(page.locator(".skeleton")).to_have_count(0)


def test_an_engine_that_failed_says_so(visit: Visit, picture: Picture) -> None:
    with LightService() as failing:
        page = live(visit(failing.address))
        failing.engine.fail(StateError("the disk is full"))
        expect(page.locator("#banner")).to_contain_text("The engine stopped. The disk is full. What is shown is old")
        expect(page.locator("main")).to_have_attribute("data-stale", "")
        picture(page, "engine-failed")


def test_a_stream_that_fails_is_shown_and_the_others_go_on(visit: Visit) -> None:
    with LightService() as service:
        page = live(visit(service.address))
        service.engine.fail_stream("trades", "stream 'trades' failed: no broker")
        expect(page.locator(".stream .problem:not([hidden])")).to_have_count(1)
        expect(page.locator(".stream .problem").first).to_contain_text(
            "Stream 'trades' failed: no broker. Next attempt at"
        )
        expect(page.locator("#banner")).to_be_hidden()
