"""`streamjoin bench`: runs the experiments of a checkout of the repository."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from streamjoin.model.errors import SetupError

_LIST = (
    "import json; from benchmarks.harness import Experiment, discover; "
    "print(json.dumps([{'name': n, 'title': getattr(e, 'title', None), 'runs_here': isinstance(e, Experiment), "
    "'reason': getattr(e, 'reason', None)} for n, e in discover('benchmarks')]))"
)


def checkout() -> Path:
    """The directory with `benchmarks/`: the working directory, or the package's repository.

    Raises:
        SetupError: there is none.
    """
    for place in (Path.cwd(), Path(__file__).resolve().parents[3]):
        if (place / "benchmarks" / "harness.py").is_file():
            return place
    raise SetupError(
        "the experiments are not part of the installed package: get a checkout of the repository, "
        "and run `make bench EXPERIMENT=sweep` or `streamjoin bench` in it"
    )


def listed(as_json: bool) -> str:
    """The list of experiments."""
    place = checkout()
    out = subprocess.run([sys.executable, "-c", _LIST], cwd=place, capture_output=True, text=True, check=False)
    if out.returncode:
        raise SetupError(f"the experiments can't be listed: {out.stderr.strip().splitlines()[-1:]}")
    experiments = json.loads(out.stdout)
    if as_json:
        return json.dumps({"experiments": experiments}, indent=2)
    return "\n".join(f"{item['name']:<22} {item['title'] or 'unavailable: ' + item['reason']}" for item in experiments)


def run_experiment(arguments: list[str]) -> int:
    """Run an experiment and return its exit code."""
    return subprocess.run([sys.executable, "-m", "benchmarks", *arguments], cwd=checkout(), check=False).returncode
