"""The documentation site: it builds without a dead link, and has what the code alone can say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import streamjoin
import streamjoin.adhoc
import streamjoin.service
import streamjoin.spark

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"


def test_every_public_name_is_in_the_reference() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    described = set(re.findall(r"^::: streamjoin\.([\w.]+)", pages, re.MULTILINE))
    names = {
        f"{module.__name__}.{name}".removeprefix("streamjoin.")
        for module in (streamjoin, streamjoin.adhoc, streamjoin.service, streamjoin.spark)
        for name in module.__all__
        if name != "__version__" and not name.endswith("Error")
    }
    both = {f"spark.{name}" for name in ("DeltaSink", "IcebergSink")}  # those of the ad-hoc engine
    assert names - both - described == set()
    assert {"model.errors"} <= described


@pytest.mark.slow
def test_the_site_builds_and_every_link_leads_somewhere() -> None:
    build = [sys.executable, "docs/build_site.py"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    topics = {"embedded": "open", "live": "live", "specs": "JoinSpec", "adhoc-queries": "adhoc.Engine.create"}
    for page, name in topics.items():
        assert f'id="streamjoin.{name}"' in (SITE / "reference" / page / "index.html").read_text()
    assert "streamjoin query add" in (SITE / "reference" / "commands" / "index.html").read_text()
    assert "POST /api/v1/queries" in (SITE / "reference" / "rest" / "index.html").read_text()
    assert "streamjoin/model/" in (SITE / "reference" / "modules" / "index.html").read_text()
    assert "- [Tutorial](tutorial/): Twenty minutes" in (SITE / "llms.txt").read_text()
