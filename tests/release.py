"""Makes the wheel and the sdist that can be published, and uses the wheel where nothing else is installed: `make dist`.

Everything happens in environments of its own, so only Python is needed; they are fetched, which takes a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
_PROGRAM = """
import streamjoin as sj

with sj.open(sj.JoinSpec(on=sj.Band("px", "bid", 0.25), window=sj.CountWindow(10))) as join:
    rows = join.push([{"px": 10.0}, {"px": 99.0}], [{"bid": 10.1}, {"bid": 55.0}]).to_pylist()
assert rows == [{"px": 10.0, "bid": 10.1}], rows
"""


def build(python: Path, target: Path) -> tuple[Path, Path]:
    """Build with the hatchling of an environment; the wheel and the sdist."""
    _run(python, "-m", "hatchling", "build", "-d", str(target), cwd=ROOT)
    (wheel,), (source,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return wheel, source


def release(target: Path = DIST) -> None:
    """Build into `target`, where former ones are removed, and check both."""
    for former in (*target.glob("*.whl"), *target.glob("*.tar.gz")):
        former.unlink()
    with tempfile.TemporaryDirectory(prefix="streamjoin-release-") as directory:
        home = Path(directory)
        print("building, with an environment for it ...", flush=True)
        tools = _environment(home / "tools", "hatchling>=1.27", "twine>=6")
        wheel, source = build(tools, target)
        _run(tools, "-m", "twine", "check", "--strict", str(wheel), str(source), cwd=home)
        _run(tools, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(home), str(source), cwd=home)
        assert _files(home / wheel.name) == _files(wheel), "the sdist gives another wheel"
        print("installing the wheel into a bare environment, and joining there ...", flush=True)
        bare = _environment(home / "bare", str(wheel))
        _run(bare, "-W", "error", "-c", _PROGRAM, cwd=home)
        _run(bare.with_name("streamjoin"), "--help", cwd=home)
    print(f"{wheel}\n{source}")


def _files(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


def _environment(place: Path, *requirements: str) -> Path:
    """The Python of a new environment that has what is named, and what that needs."""
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements, cwd=place)
    return python


def _run(program: Path, *arguments: str, cwd: Path) -> None:
    """Run it without the paths of this environment; it says why it fails."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(program), *arguments], cwd=cwd, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        sys.exit(f"{program.name} {' '.join(arguments)} failed:\n{done.stdout}")


if __name__ == "__main__":
    release()
