"""The runners of live joins by algorithm. Algorithms without a runner of their own run behind one driver thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from streamjoin.joins.live.chains import run_chain
from streamjoin.joins.live.pim import run_queue
from streamjoin.joins.live.runner import Runner, Setup
from streamjoin.joins.live.shares import run_shares

RUNNERS: Mapping[str, Callable[[Setup], Runner]] = {
    "handshake": run_chain,
    "low_latency_handshake": run_chain,
    "pim_parallel": run_queue,
    "scalejoin": run_shares,
}
"""Builds the runner of an algorithm; may raise NotSupportedError."""
