"""The tables of speeds: what they take from stored results, and that README and docs/speed.md have them."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import speed_table
from benchmarks.readme_part import SPEED_PAGE, ReadmePart


def test_both_pages_have_the_tables_of_the_stored_results() -> None:
    assert speed_table.PART.read(SPEED_PAGE) == speed_table.render()
    assert speed_table.PART.read() == speed_table.brief()
    assert len(speed_table.brief().splitlines()) == 2 + 5


def test_a_line_names_figure_baseline_and_origin(tmp_path: Path) -> None:
    rows = [
        {"window": 1 << 20, "system": "numpy", "workers": 1, "repeats": 5, "comparisons_per_s": 1e9},
        {"window": 1 << 20, "system": "nested_loop", "workers": 1, "repeats": 5, "comparisons_per_s": 1.25e10},
        {"window": 1 << 20, "system": "nested_loop", "workers": 2, "repeats": 5, "comparisons_per_s": 2e10},
    ]
    record = {"experiment": "nested", "measure": "comparisons_per_s", "date": "2026-01-02T03:04", "rows": rows}
    (tmp_path / "nested.json").write_text(json.dumps(record))
    text = speed_table.render(tmp_path)
    assert (
        "| 2-D band, nested loop, one worker | 12.5 G comparisons/s | NumPy: 1.00 G | `nested`, 5, 2026-01-02 |"
    ) in text
    assert text.count("2026-01-02") == 1
    assert "Not stored: band join" in text
    (tmp_path / "auto_regret.json").write_text(json.dumps({"rows": [{"regret": 1.0}, {"regret": 1.3}]}))
    assert "at 1 of 2 points" in speed_table.render(tmp_path)
    assert "at worst 1.30 times" in speed_table.render(tmp_path)


def test_a_part_is_replaced_between_its_markers(tmp_path: Path) -> None:
    part, readme = ReadmePart("speed", "a.module"), tmp_path / "README.md"
    readme.write_text(f"before\n{part.begin}\nformer\n{part.end}\nafter\n")
    for _ in range(2):
        part.write("now", readme)
        assert part.read(readme) == "now"
        assert readme.read_text() == f"before\n{part.begin}\nnow\n{part.end}\nafter\n"
