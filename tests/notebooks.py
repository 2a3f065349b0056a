"""Runs the notebooks: `python -m tests.notebooks` stores their outputs, the tests compare them with what is stored."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
VARIES = "varies"
"""The tag of cells whose output depends on the machine or the moment."""


def executed(path: Path) -> Any:
    """The notebook with the outputs of a new run, in a kernel of its own."""
    # Nothing of Jupyter may warn into a suite where warnings are errors.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import nbformat
        from nbclient import NotebookClient

        notebook = nbformat.read(path, as_version=4)
        os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    return notebook


def outputs(notebook: Any) -> list[tuple[str, list[str]]]:
    """The source of each cell with code, and what it printed and showed, as text."""
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "code" and VARIES not in cell.metadata.get("tags", ()):
            cells.append((cell.source, [_text(output) for output in cell.outputs]))
    return cells


def _text(output: Any) -> str:
    text = output.get("text") or output.get("data", {}).get("text/html") or output.get("data", {}).get("text/plain")
    return re.sub(r"0x[0-9a-f]+", "0x", str(text))


def main() -> None:
    import nbformat

    for path in NOTEBOOKS:
        notebook = executed(path)
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(notebook, path)
        print("ran", path.name)


if __name__ == "__main__":
    main()
