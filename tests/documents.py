"""Running the programs of a documentation page."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

_BLOCK = re.compile(r"(?:<!-- ([^>]*) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)


def run_page(path: Path) -> None:
    """Run a page's programs one after the other; a block of text behind one is what it prints.

    A comment before a block, which begins with "no-run", gives a reason not to run it.
    """
    names: dict[str, object] = {"__name__": "page"}
    printed: str | None = None
    for label, language, code in _BLOCK.findall(path.read_text()):
        if language == "python" and not label.startswith("no-run"):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(code, path.name, "exec"), names)
            printed = out.getvalue()
        elif language == "text" and printed is not None:
            assert printed == code
            printed = None
