"""Words keep the order, and intervals say exactly what the arithmetic says."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.kernels import encode
from streamjoin.kernels.batch.sweep import make_ascending
from streamjoin.model.binding import bind
from streamjoin.testing import cases as generate
from streamjoin.windows.encoding import SideEncoder, SideName
from tests.seeds import examples

EXTREMES = {
    pa.int8(): (-128, 127),
    pa.uint16(): (0, 2**16 - 1),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.int64(): (-(2**63), 2**63 - 1),
    pa.uint64(): (0, 2**64 - 1),
    pa.uint32(): (0, 2**32 - 1),
}


def whole(type_: pa.DataType) -> st.SearchStrategy[int]:
    low, high = EXTREMES[type_]
    return st.integers(low, high) | st.integers(low, low + 4) | st.integers(high - 4, high) | st.integers(0, 9)


def holds_by_words(band: sj.Band, left: pa.Array, right: pa.Array) -> tuple[list[bool], list[bool]]:
    """The band by the left tuple's interval, and by the right one's."""
    tables = pa.table({"a": left}), pa.table({"b": right})
    bound = bind(sj.JoinSpec(on=band, window=sj.CountWindow(1)), tables[0].schema, tables[1].schema)
    l, r = SideEncoder(bound, "left").encode(tables[0]), SideEncoder(bound, "right").encode(tables[1])
    a, b = l.terms[0], r.terms[0]
    valid = (True if l.valid is None else l.valid) & (True if r.valid is None else r.valid)
    return (
        list(((a.lo <= b.word) & (b.word <= a.hi) & valid).tolist()),
        list(((b.lo <= a.word) & (a.word <= b.hi) & valid).tolist()),
    )


@settings(deadline=None, max_examples=examples(300))
@given(data=st.data())
def test_integer_bands_never_wrap(data: st.DataObject) -> None:
    left_type, right_type = data.draw(st.tuples(*[st.sampled_from(sorted(EXTREMES, key=str))] * 2))
    l, r = data.draw(whole(left_type)), data.draw(whole(right_type))
    below, above = data.draw(st.tuples(*[st.integers(0, 2**63 - 1) | st.integers(0, 5)] * 2))
    near = data.draw(st.booleans())
    if near:
        r = min(max(l + data.draw(st.integers(-6, 6)), EXTREMES[right_type][0]), EXTREMES[right_type][1])
    strict = data.draw(st.booleans()) and below + above > 0
    band = sj.Band("a", "b", below=below, above=above, strict=strict)
    wanted = -above < l - r < below if strict else -above <= l - r <= below
    got = holds_by_words(band, pa.array([l], left_type), pa.array([r], right_type))
    assert got == ([wanted], [wanted])


@settings(deadline=None, max_examples=examples(300))
@given(l=st.integers(-(10**17), 10**17), r=st.integers(-(10**14), 10**14), d=st.integers(0, 10**6), near=st.booleans())
def test_decimal_bands_of_different_scales_are_exact(l: int, r: int, d: int, near: bool) -> None:
    if near:
        r = l // 1000 + d % 7 - 3
    if abs(r) >= 10**15:
        r = 0
    a, b = Decimal(l).scaleb(-6), Decimal(r).scaleb(-3)
    band = sj.Band("a", "b", Decimal(d).scaleb(-5))
    wanted = abs(Fraction(l, 10**6) - Fraction(r, 10**3)) <= Fraction(d, 10**5)
    got = holds_by_words(band, pa.array([a], pa.decimal128(18, 6)), pa.array([b], pa.decimal128(15, 3)))
    assert got == ([wanted], [wanted])


@pytest.mark.parametrize("width", [np.float32, np.float64])
@settings(deadline=None, max_examples=examples(400))
@given(data=st.data())
def test_float_bands_round_as_floats_do(width: type, data: st.DataObject) -> None:
    bits = 32 if width is np.float32 else 64
    values = st.floats(width=bits) | st.integers(-20, 20).map(lambda i: float(width(i / 10)))  # type: ignore[arg-type]
    l, r = data.draw(values), data.draw(values)
    below, above = data.draw(st.tuples(*[st.sampled_from([0.0, 0.1, 0.3, 1.0, 1e30])] * 2))
    strict = data.draw(st.booleans()) and below + above > 0
    with np.errstate(all="ignore"):
        difference = width(l) - width(r)
        limits = width(below), width(above)
        wanted = bool((-limits[1] < difference < limits[0]) if strict else (-limits[1] <= difference <= limits[0]))
    type_ = pa.float32() if width is np.float32 else pa.float64()
    band = sj.Band("a", "b", below=below, above=above, strict=strict)
    assert holds_by_words(band, pa.array([l], type_), pa.array([r], type_)) == ([wanted], [wanted])


@settings(deadline=None)
@given(st.lists(st.floats(), min_size=2))
def test_float_words_keep_the_order(values: list[float]) -> None:
    array = np.array(values)
    words, valid = np.empty(array.size, np.int64), np.ones(array.size, np.bool_)
    encode.float64_words(array, words, valid)
    assert (valid == ~np.isnan(array)).all()
    kept, kept_words = array[valid], words[valid]
    assert ((kept[:, None] < kept) == (kept_words[:, None] < kept_words)).all()
    assert ((kept[:, None] == kept) == (kept_words[:, None] == kept_words)).all()


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30), min_size=1))
def test_hashes_depend_on_the_bytes_alone(values: list[bytes]) -> None:
    array = pa.array(values, pa.large_binary())
    offsets = np.frombuffer(array.buffers()[1], np.int64)[: len(values) + 1]
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    words = np.empty(len(values), np.int64)
    encode.hash_bytes(offsets, data, words)
    seen = dict(zip(values, words.tolist(), strict=True))
    assert len(set(seen.values())) == len(seen)
    assert [seen[v] for v in values] == words.tolist()


def test_kernels_agree_with_themselves_uncompiled() -> None:
    values = np.array([0.0, -0.0, 1.5, -1e300, np.inf, np.nan, 5e-324, 1.7976931348623157e308])
    out = []
    for words_of, intervals_of in (
        (encode.float64_words, encode.float64_intervals),
        (encode.float64_words.py_func, encode.float64_intervals),  # type: ignore[attr-defined]
    ):
        words, valid = np.zeros(values.size, np.int64), np.ones(values.size, np.bool_)
        lo, hi = np.zeros(values.size, np.int64), np.zeros(values.size, np.int64)
        words_of(values, words, valid)
        intervals_of(words, 0.5, 1.5, False, lo, hi)
        out.append((words[valid].tolist(), lo[valid].tolist(), hi[valid].tolist()))
    assert out[0] == out[1]


@pytest.mark.parametrize("keys", generate.BANDS + generate.REAL, ids=lambda k: k.name)
@settings(deadline=None, max_examples=examples(40))
@given(data=st.data())
def test_exact_intervals_ascend_with_their_words(keys: generate.KeyDomain, data: st.DataObject) -> None:
    """A sweep's pointer only moves forward; where the words decide, no interval may be widened to make that right."""
    on, _, kind = data.draw(generate.terms("k", ((keys,), (keys,))))
    schemas = [pa.schema([("k", type_)]) for type_ in (kind.left, kind.right)]
    bound = bind(sj.JoinSpec(on=on, window=sj.CountWindow(1)), *schemas)
    sides: tuple[tuple[SideName, st.SearchStrategy[object]], ...] = (
        ("left", kind.values),
        ("right", kind.right_values),
    )
    for (side, values), schema in zip(sides, schemas, strict=True):
        array = pa.array(data.draw(st.lists(values, max_size=30)), schema.field("k").type)
        encoded = SideEncoder(bound, side).encode(pa.table({"k": array}))
        index = encoded.index
        assert index is not None
        order = np.argsort(index.word, kind="stable")
        if encoded.valid is not None:
            order = order[encoded.valid[order]]
        order = order[index.lo[order] <= index.hi[order]]
        lo, hi = index.lo[order], index.hi[order]
        if bound.settled:
            assert (np.diff(lo.astype(object)) >= 0).all() and (np.diff(hi.astype(object)) >= 0).all()
        widened = lo.copy()
        make_ascending(widened, hi)
        assert (widened <= lo).all() and (np.diff(widened.astype(object)) >= 0).all()
