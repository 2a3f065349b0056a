"""Prometheus and its promtool for the tests of `deploy/prometheus`: installed ones, else those of Debian's package.

The package is unpacked into the user's cache, not installed, so that no server starts. `python -m
tests.deploy.prometheus` sees to it, and says what to do where it can't; the tests then fail with the same words.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from streamjoin._cache import cache_dir

HOW = (
    "The tests of the alerts need Prometheus, and there is none. Put `prometheus` and `promtool` on the path "
    "(Debian: apt-get install prometheus; macOS: brew install prometheus; or prometheus.io/download)"
)


def _unpacked() -> Path:
    return cache_dir() / "prometheus"


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`.

    Raises:
        FileNotFoundError: there is none; the message says what to do.
    """
    found = shutil.which(name) or shutil.which(name, path=str(_unpacked() / "usr" / "bin"))
    if found is None:
        raise FileNotFoundError(HOW)
    return found


def install() -> None:
    """Unpack Debian's package, where there is one."""
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg")
    if apt is None or dpkg is None:
        return
    print("fetching Prometheus for the tests of the alerts (once; under a minute) ...", flush=True)
    target = _unpacked()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        update = [[apt, "-qq", "update"]] if os.geteuid() == 0 else []
        for step in (*update, [apt, "-qq", "download", "prometheus"]):
            done = subprocess.run(step, cwd=folder, capture_output=True, text=True)
        packages = [str(file) for file in Path(folder).glob("*.deb")]
        if done.returncode or not packages:
            print(done.stderr.strip(), file=sys.stderr)
            return
        subprocess.run([dpkg, "-x", packages[0], f"{folder}/unpacked"], check=True)
        shutil.rmtree(target, ignore_errors=True)
        Path(folder, "unpacked").rename(target)


def main() -> None:
    """See to a Prometheus."""
    try:
        program("promtool"), program("prometheus")
    except FileNotFoundError:
        install()
        try:
            program("promtool")
        except FileNotFoundError as error:
            print(error, file=sys.stderr)


if __name__ == "__main__":
    main()
