"""The operator of a join: windows and pairs, or one pass in the order of time for as-of joins by key."""

from __future__ import annotations

from streamjoin.joins.engine.metrics import Counts
from streamjoin.joins.engine.operator import Operator
from streamjoin.joins.kinds.asof_operator import AsOfByKey, AsOfOperator
from streamjoin.joins.registry import AlgorithmChoice
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.workers import Workers


def begin_operator(
    bound: BoundSpec, choice: AlgorithmChoice, workers: Workers, counts: Counts
) -> Operator | AsOfOperator:
    """The operator for the chosen algorithm."""
    kind = AsOfOperator if choice.name == AsOfByKey.name else Operator
    return kind(bound, choice, workers, counts)
