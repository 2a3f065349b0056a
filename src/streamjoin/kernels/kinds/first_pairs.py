"""The first pair of each tuple, by the place of the later tuple, then of the earlier one."""

from __future__ import annotations

from streamjoin._arrays import Array
from streamjoin.kernels.flags import kernel


@kernel
def lower_places(position: Array, partner: Array, rows: Array, new_position: Array, new_partner: Array) -> None:
    """Set position and partner of each of `rows` to the new ones, where these come before."""
    for i in range(rows.size):
        row = rows[i]
        first, second = new_position[i], new_partner[i]
        if first < position[row] or (first == position[row] and second < partner[row]):
            position[row] = first
            partner[row] = second
