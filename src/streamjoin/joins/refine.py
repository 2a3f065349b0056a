"""The tests an algorithm leaves open: further terms, times out of order, and the residual expression."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.joins.base import Chunk, Refine
from streamjoin.kernels.gather import sides_of_pairs
from streamjoin.kernels.positions import filter_terms, filter_ticks
from streamjoin.model.binding import BoundSpec
from streamjoin.model.evaluation import evaluate, from_arrow, truth
from streamjoin.model.expression import Expression
from streamjoin.windows.store import SideStore
from streamjoin.windows.workers import Workers

Array = np.ndarray[Any, np.dtype[Any]]

# Refinement runs inside a worker already.
_ALONE = Workers(1)


def refinement(
    bound: BoundSpec,
    stores: tuple[SideStore, SideStore],
    payload: tuple[SideStore, SideStore],
    chunk: Chunk,
    open_terms: tuple[int, ...],
    least_ticks: Array | None,
    compared: list[int],
) -> Refine:
    """A function that keeps the pairs of `chunk` that satisfy everything; safe to call from several threads."""
    left, right = stores
    place = np.empty(chunk.n, np.int64)
    if open_terms:
        place[chunk.left.at] = np.arange(chunk.left.n)
        place[chunk.right.at] = np.arange(chunk.right.n)

    def refine(probes: Array, seqs: Array) -> tuple[Array, Array]:
        n = probes.size
        compared.append(n)
        if least_ticks is not None and left.ticks is not None and right.ticks is not None:
            n = filter_ticks(
                probes, seqs, n, chunk.is_right, least_ticks,
                left.ticks.values, right.ticks.values, left.base, right.base,
            )  # fmt: skip
        for t in open_terms:
            a, b = chunk.left.encoded.terms[t], chunk.right.encoded.terms[t]
            n = filter_terms(
                probes, seqs, n, chunk.is_right, place, a.lo, a.hi, b.lo, b.hi,
                left.words[t].values, right.words[t].values, left.base, right.base,
            )  # fmt: skip
        probes, seqs = probes[:n], seqs[:n]
        if bound.residual is not None and n:
            keep = _holds(bound.residual, payload, *positions(chunk, probes, seqs))
            probes, seqs = probes[keep], seqs[keep]
        return probes, seqs

    return refine


def positions(chunk: Chunk, probes: Array, seqs: Array) -> tuple[Array, Array]:
    """The left and the right tuple's stream position of each pair."""
    left, right = np.empty(probes.size, np.int64), np.empty(probes.size, np.int64)
    sides_of_pairs(probes, seqs, chunk.is_right, chunk.own_seq, left, right)
    return left, right


def _holds(expression: Expression, payload: tuple[SideStore, SideStore], left: Array, right: Array) -> Array:
    values = {}
    for qualifier, store, seqs in (("l", payload[0], left), ("r", payload[1], right)):
        wanted = [column for column in expression.columns if column.qualifier == qualifier]
        rows = store.gather([column.name for column in wanted], seqs, _ALONE)
        values.update({column: from_arrow(rows[column.name]) for column in wanted})
    return truth(evaluate(expression, values), (left.size,))
