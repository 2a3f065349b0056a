"""The documentation site: it builds without a dead link, and has what the code alone can say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"


@pytest.mark.slow
def test_the_site_builds_and_every_link_leads_somewhere() -> None:
    build = [sys.executable, "docs/build_site.py"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    api = (SITE / "reference" / "embedded" / "index.html").read_text()
    assert all(f'id="streamjoin.{name}"' in api for name in ("open", "live", "JoinSpec", "AsOf", "data.replay"))
    assert "streamjoin query add" in (SITE / "reference" / "commands" / "index.html").read_text()
    assert "POST /api/v1/queries" in (SITE / "reference" / "rest" / "index.html").read_text()
    assert "- [Tutorial](tutorial/): Twenty minutes" in (SITE / "llms.txt").read_text()
