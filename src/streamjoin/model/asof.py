"""`AsOf`: for every left tuple at most one right tuple, the nearest in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamjoin.model import durations
from streamjoin.model.errors import SpecError
from streamjoin.model.window import TimeWindow

Direction = Literal["backward", "forward", "nearest"]

_DIRECTIONS = ("backward", "forward", "nearest")


@dataclass(frozen=True)
class AsOf:
    """Match every left tuple with the right tuple nearest in time, among those for which `on` holds.

    Args:
        direction: "backward" takes the last right tuple at or before the left one's time, "forward" the first at or
            after it, "nearest" the closer of the two, the backward one if both are equally far.
        tolerance: the largest distance in time, inclusive: a duration, or a whole number in the unit of an integer time
            column. "forward" and "nearest" need it, and so does every `on` that is more than equalities.
        exact: whether a right tuple of the same time counts.
    """

    direction: Direction = "backward"
    tolerance: durations.Duration | durations.WholeNumber | None = None
    exact: bool = True

    def __post_init__(self) -> None:
        if self.direction not in _DIRECTIONS:
            raise SpecError(f"AsOf({self.direction!r}): the direction is 'backward', 'forward' or 'nearest'")
        if not isinstance(self.exact, bool):
            raise SpecError(f"AsOf(exact={self.exact!r}): it is True or False")
        if self.tolerance is not None:
            object.__setattr__(self, "tolerance", durations.plain_number(self.tolerance))
            try:
                _ = self.reach
            except SpecError as error:
                raise SpecError(f"AsOf(tolerance={self.tolerance!r}): {error}") from error

    @property
    def reach(self) -> TimeWindow | None:
        """The tolerance as a window."""
        return None if self.tolerance is None else TimeWindow(self.tolerance)

    def __str__(self) -> str:
        parts = [self.direction, *([f"tolerance {self.reach}"] if self.reach is not None else [])]
        return ", ".join(parts if self.exact else [*parts, "without equal times"])
