"""Keeps rare steps out of the kernels that call them.

LLVM copies a function into its callers as it sees fit. For the steps of a Bw-Tree that come once in many operations, or
that are long, the copies make a kernel take several times as long to compile, and gain nothing.
"""

# ruff: noqa: ARG001 - an intrinsic is called with more than it uses
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import intrinsic

from streamjoin.jit.machine import choose


@intrinsic
def _stay_apart(typing_context: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # A function that an `inlined` one calls has inherited "alwaysinline".
        builder.function.attributes.discard("alwaysinline")
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen


def _plain_stay_apart() -> None:
    """Do nothing: without the compiler every function is called."""


stay_apart: Callable[[], None] = choose(_stay_apart, _plain_stay_apart)
"""Called anywhere in a kernel: it is never copied into another."""
