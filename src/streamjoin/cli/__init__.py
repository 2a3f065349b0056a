"""The command line: `streamjoin`. Exit codes are in `main`, and in docs/cli.md."""

from streamjoin.cli.main import app, commands

__all__ = ["app", "commands"]
