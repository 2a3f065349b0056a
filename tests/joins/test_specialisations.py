"""How often kernels are compiled: once for a kind of key, wherever the tables come from."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj


def overloads() -> dict[str, list[str]]:
    """The argument types that each kernel of this process was compiled or loaded for."""
    found: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("streamjoin.kernels."):
            for function in vars(module).values():
                if hasattr(function, "overloads") and function.py_func.__module__ == name:
                    found[f"{name}.{function.__name__}"] = [str(types) for types in function.overloads]
    return found


def rows(n: int) -> pa.Table:
    return pa.table(
        {
            "t": pa.array(np.arange(n), pa.timestamp("us")),
            "k": pa.array([f"k{i % 3}" for i in range(n)]),
            "i": pa.array(np.arange(n), pa.int64()),
            "u": pa.array(np.arange(n), pa.uint64()),
            "f": pa.array(np.arange(n), pa.float64()),
            "g": pa.array(np.arange(n), pa.float32()),
            "d": pa.array(list(range(n)), pa.decimal128(30, 2)),
        }
    )


def read_only(table: pa.Table) -> pa.Table:
    """The same rows in memory that may not be written to, as files and other libraries hand it out."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(pa.py_buffer(sink.getvalue().to_pybytes())).read_all()


def unaligned(table: pa.Table) -> pa.Table:
    """The same rows at odd addresses, as a slice of a message may have them."""

    def moved(buffer: pa.Buffer | None) -> pa.Buffer | None:
        return None if buffer is None else pa.py_buffer(b"x" + buffer.to_pybytes()).slice(1)

    arrays = [table.column(name).combine_chunks() for name in table.schema.names]
    return pa.Table.from_arrays(
        [pa.Array.from_buffers(a.type, len(a), [moved(b) for b in a.buffers()]) for a in arrays], schema=table.schema
    )


def pushed(join: sj.Join, table: pa.Table) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = join.push(table, table).to_pylist()
    return result


@pytest.mark.parametrize("algorithm", ["nested_loop", "sweep", "indexed"])
@pytest.mark.parametrize(
    "on",
    [
        sj.Band("i", "i", 1) & sj.Band("g", "g", 1.0),
        sj.Equi("u") & sj.Band("f", "f", 1.0),
        sj.Equi("k") & sj.Band("t", "t", "1 us"),
        sj.Band("d", "d", 1),
    ],
    ids=str,
)
def test_where_a_table_comes_from_compiles_nothing_anew(on: Any, algorithm: str) -> None:
    spec = sj.JoinSpec(on=on, window=sj.TimeWindow("1 second"), time="t", order="arrival")
    with sj.open(spec, algorithm) as join:
        # Twice, because the second push meets a window that holds something.
        expected = [pushed(join, rows(9)) for _ in range(2)]
    before = overloads()
    for moved in (read_only, unaligned):
        with sj.open(spec, algorithm) as join:
            assert [pushed(join, moved(rows(9))) for _ in range(2)] == expected
        assert overloads() == before, moved
