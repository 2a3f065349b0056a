"""The layer of each kind of join."""

from __future__ import annotations

from streamjoin.joins.kinds.asof_layer import AsOfLayer
from streamjoin.joins.kinds.base import KindLayer
from streamjoin.joins.kinds.outer import OuterLayer
from streamjoin.joins.kinds.semi import SemiLayer
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.store import SideStore


def kind_layer(bound: BoundSpec, stores: tuple[SideStore, SideStore]) -> KindLayer | None:
    """The layer between pairs and rows; None for an inner join, whose rows are its pairs."""
    if bound.match is not None:
        return AsOfLayer(bound, stores)
    if bound.spec.how == "inner":
        return None
    return SemiLayer(bound, stores) if bound.spec.how == "semi" else OuterLayer(bound, stores)
