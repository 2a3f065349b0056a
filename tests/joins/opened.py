"""Joins whose pushes take the general way a given number of times, and compiled steps from then on."""

from __future__ import annotations

from typing import Any

import streamjoin as sj
from streamjoin.joins.auto import AlgorithmRequest
from streamjoin.joins.engine.driver import Join
from streamjoin.joins.engine.settings import OpenSettings


def opened(
    general_pushes: int | None,
    spec: sj.JoinSpec,
    algorithm: str = "auto",
    workers: int = 1,
    index: str | None = None,
    **settings: Any,
) -> Join:
    """`sj.open`, with compiled steps after so many pushes, whether their kernels are compiled or not."""
    request = AlgorithmRequest(algorithm, index)
    return Join(spec, OpenSettings(request, workers, general_pushes=general_pushes, **settings))
