"""The sorting operator (Low-Latency Handshake Join, section 6): result order from deliveries out of order.

A delivery says up to which gate position the result is complete. Rows before that position are sorted and released;
rows after it wait. Invariant: all waiting rows have their later tuple at or after `reached`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from streamjoin.joins.live.runner import Delivery


class Sorter:
    """Sorts the deliveries of one runner. One thread uses it at a time."""

    def __init__(self) -> None:
        self._waiting: list[Delivery] = []

    @property
    def waiting(self) -> int:
        """The number of rows that wait for earlier ones."""
        return sum(delivery.rows.num_rows for delivery in self._waiting)

    def sort(self, delivery: Delivery) -> Delivery:
        """Take a delivery; returns the rows that are complete now, in result order."""
        if delivery.rows.num_rows:
            self._waiting.append(delivery)
        reached = delivery.reached
        parts: list[Delivery] = []
        rest: list[Delivery] = []
        for waiting in self._waiting:
            complete = waiting.later < reached
            if complete.all():
                parts.append(waiting)
            elif complete.any():
                parts.append(_part(waiting, complete))
                rest.append(_part(waiting, ~complete))
            else:
                rest.append(waiting)
        self._waiting = rest
        return _sorted(parts, delivery)


def _part(delivery: Delivery, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Delivery:
    places = np.flatnonzero(mask)
    return Delivery(
        delivery.rows.take(pa.array(places)),
        delivery.later[places],
        delivery.earlier[places],
        delivery.arrived[places],
        delivery.reached,
        delivery.time,
    )


def _sorted(parts: list[Delivery], newest: Delivery) -> Delivery:
    if not parts:
        none = np.empty(0, np.int64)
        return Delivery(newest.rows.schema.empty_table(), none, none, none, newest.reached, newest.time)
    rows = parts[0].rows if len(parts) == 1 else pa.concat_tables([part.rows for part in parts])
    later, earlier, arrived = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("later", "earlier", "arrived")
    )
    order = np.lexsort((earlier, later))
    if not np.array_equal(order, np.arange(order.size)):
        rows, later, earlier, arrived = rows.take(pa.array(order)), later[order], earlier[order], arrived[order]
    return Delivery(rows, later, earlier, arrived, newest.reached, newest.time)
