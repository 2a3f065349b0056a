"""A Chromium for the page's tests: an installed one, else Debian's package where it may be installed.

`python -m tests.page.chromium` sees to one, and says what to do where it can't; that is no failure, so that the other
tests run. The page's own tests then fail with the same words: they are not skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW = (
    "The page's tests drive a Chromium, and there is none. Install one (Debian: apt-get install chromium; Fedora: "
    "dnf install chromium; macOS: brew install --cask chromium), or name one: CHROMIUM=/path/to/chromium make test"
)


def find() -> Path | None:
    """An installed Chromium: the one of the environment variable CHROMIUM, else the first on the path."""
    named = os.environ.get("CHROMIUM")
    if named:
        found = shutil.which(named)
        if found is None:
            raise FileNotFoundError(f"CHROMIUM names {named!r}, and there is no such program")
        return Path(found)
    return next((Path(found) for found in map(shutil.which, NAMES) if found), None)


def install() -> None:
    """Install Debian's package, where there is one and it may be installed without a question."""
    apt = shutil.which("apt-get")
    if apt is None:
        return
    root = [] if os.geteuid() == 0 else ["sudo", "--non-interactive"]
    if root and (shutil.which("sudo") is None or subprocess.run([*root, "true"], capture_output=True).returncode):
        return
    print("installing Chromium for the page's tests (once; a minute or two) ...", flush=True)
    quiet = [*root, "env", "DEBIAN_FRONTEND=noninteractive", apt, "-qq"]
    steps = (["update"], ["install", "--yes", "--no-install-recommends", "chromium"])
    for step in steps:
        done = subprocess.run([*quiet, *step], capture_output=True, text=True)
        if done.returncode:
            print(done.stderr.strip(), file=sys.stderr)
            return


def main() -> None:
    """See to a Chromium."""
    if find() is None:
        install()
        if find() is None:
            print(HOW, file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except FileNotFoundError as error:
        raise SystemExit(str(error)) from error
