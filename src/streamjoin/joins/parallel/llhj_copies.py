"""The stored copies of a low-latency handshake join's nodes: two rows of words a node and side.

Place p lies at its home, node p % nodes, in column p // nodes less the number of the first column. Invariant: between
flows there is a column for every place that is still in a window.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.joins.parallel.handshake_chain import Chain
from streamjoin.kernels.handshake.links import COLUMNS, EXPIRED

Array = np.ndarray[Any, np.dtype[Any]]

_LEAST = 256


class Copies:
    """Both sides' copies at all nodes of a chain."""

    def __init__(self, chain: Chain, dtype: Any) -> None:
        self._chain = chain
        self._rows = [np.zeros((chain.nodes, 2, 0), dtype) for _ in (0, 1)]

    def of(self, k: int) -> tuple[Array, Array]:
        """Node k's copies of side 0 and side 1."""
        return self._rows[0][k], self._rows[1][k]

    def make_room(self) -> None:
        """Have a column for all that the logs hold; the expired make way."""
        nodes = self._chain.nodes
        for side, log in enumerate(self._chain.logs):
            rows, first = self._rows[side], int(self._chain.mem[COLUMNS + side])
            needed = -(-log.count // nodes) + 1
            if needed - first <= rows.shape[2]:
                continue
            least = int(self._chain.node_words(EXPIRED + side).min()) // nodes
            held = max(0, rows.shape[2] - (least - first))
            capacity = max(_LEAST, 2 * (needed - least))
            moved = np.zeros((nodes, 2, capacity), rows.dtype)
            if held:
                moved[:, :, :held] = rows[:, :, least - first :]
            self._rows[side] = moved
            self._chain.mem[COLUMNS + side] = least

    @property
    def nbytes(self) -> int:
        """The memory it holds."""
        return sum(rows.nbytes for rows in self._rows)
