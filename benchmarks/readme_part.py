"""Parts of README and of docs/speed.md that a command writes from the stored results, each between two markers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks import provenance

RESULTS = Path(__file__).parent / "results"
README = provenance.ROOT / "README.md"
SPEED_PAGE = provenance.ROOT / "docs" / "speed.md"


@dataclass(frozen=True)
class ReadmePart:
    """The part between the markers of one name; `module` is what writes it."""

    name: str
    module: str

    @property
    def begin(self) -> str:
        """The marker before it."""
        return f"<!-- {self.name}: written by python -m {self.module} -->"

    @property
    def end(self) -> str:
        """The marker after it."""
        return f"<!-- end of {self.name} -->"

    def read(self, page: Path = README) -> str:
        """What README, or another page, has."""
        return page.read_text().partition(self.begin)[2].partition(self.end)[0].strip()

    def write(self, text: str, page: Path = README) -> str:
        """Put `text` there, and return it."""
        before, _, rest = page.read_text().partition(self.begin)
        after = rest.partition(self.end)[2]
        page.write_text(f"{before}{self.begin}\n{text}\n{self.end}{after}")
        return text
