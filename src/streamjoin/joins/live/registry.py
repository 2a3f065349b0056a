"""The runners of live joins by algorithm. Algorithms without a runner of their own run behind one driver thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from streamjoin.joins.live.runner import Runner, Setup

RUNNERS: Mapping[str, Callable[[Setup], Runner]] = {}
"""Builds the runner of an algorithm; may raise NotSupportedError."""
