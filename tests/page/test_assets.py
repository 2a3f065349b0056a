"""The page's files: small, whole, and free of inline code and of anything from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import streamjoin

PAGE = Path(streamjoin.__file__).parent / "service" / "page"
FILES = sorted(path for path in PAGE.iterdir() if path.is_file())
MOST_BYTES = 200_000
IMPORT = re.compile(r'from "\./([\w.-]+)"')


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    if path.suffix in (".js", ".css"):
        assert text.startswith("/* "), "no opening comment"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"')]*", path.read_text()))
    assert addresses <= {"http://www.w3.org/2000/svg"}, "the page works without the internet"


def test_the_page_is_small() -> None:
    assert sum(path.stat().st_size for path in FILES) <= MOST_BYTES


def test_every_file_is_used_and_every_used_file_is_there() -> None:
    named = set(re.findall(r'"static/([\w.-]+)"', (PAGE / "index.html").read_text()))
    scripts = {name for path in FILES if path.suffix == ".js" for name in IMPORT.findall(path.read_text())}
    assert named | scripts | {"index.html"} == {path.name for path in FILES}


def test_a_strict_content_security_policy_is_possible() -> None:
    markup = (PAGE / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", markup)
    assert not re.search(r"<script(?![^>]*\bsrc=)", markup)
    code = "\n".join(path.read_text() for path in FILES if path.suffix == ".js")
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert forbidden not in code, f"{forbidden} would let data become markup or code"
    assert not re.search(r"\bstyle: [\"`]", code), "a style attribute would be refused"
