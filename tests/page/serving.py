"""`streamjoin serve` as a process, with the file that `streamjoin init` writes."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

STREAMJOIN = [sys.executable, "-m", "streamjoin"]


@contextlib.contextmanager
def serving(folder: Path, spark: Mapping[str, object] | None = None) -> Iterator[str]:
    """The address of a service whose file and data are in `folder`; `spark` are settings of its session."""
    file = folder / "streamjoin.toml"
    subprocess.run([*STREAMJOIN, "init", str(file)], check=True, capture_output=True)
    settings = "".join(f'"{key}" = "{value}"\n' for key, value in (spark or {}).items())
    file.write_text(f"{file.read_text()}\n[spark.conf]\n{settings}")
    command = [*STREAMJOIN, "serve", str(file), "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        said = ""
        try:
            while not (found := re.search(r"listening on (http://[\d.:]+)", said)):
                line = running.stderr.readline()
                assert line, f"the service ended: {said}"
                said += line
            yield f"{found[1]}/"
        finally:
            running.send_signal(signal.SIGTERM)
            running.communicate(timeout=60)
    assert running.returncode == 0, "a service that is told to stop ends with 0"
