"""The alerts and the dashboard: Prometheus takes and runs them, and they name only what the service exposes."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.deploy.prometheus import program
from tests.service.conftest import Live, live, start
from tests.service.events import wait_for

__all__ = ["live", "start"]
DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "streamjoin.rules.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "streamjoin.json").read_text())
NAMES = re.compile(r"\bstreamjoin_\w+")


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> Iterator[str]:
    """Every expression of the rules and of the dashboard, with values for the dashboard's variables."""
    yield from (rule["expr"] for rule in rules())
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")


def test_prometheus_takes_the_rules_and_they_fire_when_they_should() -> None:
    folder = RULES.parent
    for words in (["check", "rules", "--lint-fatal", RULES.name], ["test", "rules", "streamjoin.test.yml"]):
        done = subprocess.run([program("promtool"), *words], cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = (folder / "streamjoin.test.yml").read_text()
    assert {rule["alert"] for rule in rules()} == set(re.findall(r'alertname="(\w+)"', tested))


@pytest.fixture
def exposed(live: Live) -> str:
    """The metrics of a service that has joined something."""
    live.create(name="near")
    live.engine.tick()
    return live.client().get("/metrics").text


def test_rules_and_dashboard_name_only_what_the_service_exposes(exposed: str) -> None:
    labels: dict[str, set[str]] = {}
    for name, rendered in re.findall(r"^(streamjoin_\w+)(?:\{(.*)\})? ", exposed, re.MULTILINE):
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', rendered))
    used = {name for text in expressions() for name in NAMES.findall(text)}
    assert used - labels.keys() == set()
    # A legend or a grouping names labels that one of the metrics has; the scrape itself gives `instance`.
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            known = {"instance"}.union(*(labels[name] for name in NAMES.findall(target["expr"])))
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            named.update(
                label for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in group.split(", ")
            )
            assert named <= known, panel["title"]
    for rule in rules():
        known = {"instance"}.union(*(labels[name] for name in NAMES.findall(rule["expr"])))
        named = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        assert named <= known, rule["alert"]


def test_the_dashboard_can_be_imported() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    sources = {variable["name"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "datasource"}
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["datasource"]["uid"].strip("${}") in sources
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another"
        assert all(x < 24 for x, _ in cells)
        taken |= cells


@pytest.mark.slow
def test_a_prometheus_scrapes_the_service_and_evaluates_everything(live: Live, exposed: str, tmp_path: Path) -> None:
    assert exposed
    target = live.url.removeprefix("http://")
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "streamjoin", "static_configs": [{"targets": [target]}]}],
    }
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    log = tmp_path / "log"
    command = [program("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with log.open("w") as out:
        server = subprocess.Popen([*command, "--web.listen-address=127.0.0.1:0"], stdout=out, stderr=out)
    try:
        wait_for(lambda: server.poll() is not None or listening(log) is not None)
        address = listening(log)
        assert address is not None, log.read_text()

        def asked(path: str, **params: str) -> dict[str, Any]:
            data: dict[str, Any] = httpx.get(f"http://{address}/api/v1/{path}", params=params, timeout=120).json()
            assert data["status"] == "success", data
            return data["data"]  # type: ignore[no-any-return]

        wait_for(lambda: asked_or_none(asked, 'streamjoin_query_rows_total{query="near"}'))
        for expression in expressions():
            asked("query", query=expression)
        wait_for(lambda: all(rule["health"] == "ok" for rule in asked("rules")["groups"][0]["rules"]))
    finally:
        server.terminate()
        server.wait(120)


def asked_or_none(asked: Any, expression: str) -> Any:
    """The samples of an expression; none while the server is not ready."""
    try:
        return asked("query", query=expression)["result"]
    except (httpx.HTTPError, ValueError, AssertionError):
        return None


def listening(log: Path) -> str | None:
    """The address that a Prometheus says that it listens on."""
    found = re.search(r'"Listening on" address="?(127\.0\.0\.1:[1-9]\d*)', log.read_text())
    return None if found is None else found[1]
