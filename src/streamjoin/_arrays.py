"""The type of a NumPy array of any shape and element type. Below every layer: it needs NumPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
