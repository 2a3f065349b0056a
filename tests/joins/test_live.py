"""Live joins from outside: sources, consumers, back-pressure, silence, the end."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import signal
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.joins.live.running import Run
from streamjoin.testing.clock import ManualClock
from tests.joins.live_runs import ending

SPEC = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(1_000))
TIMED = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(1_000), time="t", order="event_time")
TYPES = pa.schema([("k", pa.int64()), ("t", pa.int64())])
SCHEMAS: dict[str, Any] = {"left_schema": TYPES, "right_schema": TYPES}


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """Every test ends, and leaves no thread of a live join."""
    with ending():
        yield


def keys(*values: int, t: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"k": list(values), "t": [t] * len(values)}, schema=TYPES)


def at(*times: int) -> pa.RecordBatch:
    """Tuples of one key at these times."""
    return pa.record_batch({"k": [1] * len(times), "t": list(times)}, schema=TYPES)


def times(rows: pa.RecordBatch | pa.Table) -> list[tuple[int, int]]:
    return list(zip(rows["t_left"].to_pylist(), rows["t_right"].to_pylist(), strict=True))


def read_times(consumer: Iterator[pa.RecordBatch], n: int) -> list[tuple[int, int]]:
    """The first `n` rows that come."""
    pairs: list[tuple[int, int]] = []
    while len(pairs) < n:
        pairs += times(next(consumer))
    return pairs


# -- sources and consumers -------------------------------------------------------------------------------------


def test_rows_come_while_sources_push() -> None:
    with sj.live(SPEC) as join:
        left, right = join.source("left", "sensor-7"), join.source("right")
        left.push(keys(1, 2))
        for number in range(5):
            right.push(keys(2))
            rows = next(iter(join))
            assert (rows.num_rows, rows["k"][0].as_py()) == (1, 2), number
        join.close()
        assert list(join) == []


def test_every_consumer_reads_everything() -> None:
    with sj.live(SPEC, **SCHEMAS) as join:
        called: list[int] = []
        readers = [join.consumer() for _ in range(3)]
        join.on_rows(lambda rows: called.extend(rows["k"].to_pylist()))
        sums = [0, 0, 0]

        def read(number: int) -> None:
            sums[number] = sum(rows.num_rows for rows in readers[number])

        threads = [threading.Thread(target=read, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        left, right = join.source("left"), join.source("right")
        for number in range(40):
            left.push(keys(number))
            right.push(keys(number, number))
        join.close()
        for thread in threads:
            thread.join()
    assert sums == [80] * 3
    assert called == [number for number in range(40) for _ in range(2)]


def test_the_first_consumer_gets_the_rows_that_waited_for_it() -> None:
    with sj.live(SPEC, **SCHEMAS) as join:
        join.source("left").push(keys(1))
        join.source("right").push(keys(1))
        while join.metrics()["rows"] == 0:
            join.wait(0.001)
        first, second = join.consumer(), join.consumer()
        join.close()
        assert [rows.num_rows for rows in first] == [1]
        assert list(second) == []


def test_a_consumer_that_vanishes_holds_up_nobody() -> None:
    with (
        pytest.raises(sj.StateError, match=r"callback .* raised ZeroDivisionError"),
        sj.live(SPEC, result_rows=4, **SCHEMAS) as join,
    ):
        reader, closed, dropped = join.consumer(), join.consumer(), join.consumer()
        failing = join.on_rows(lambda rows: 1 / 0)
        closed.close()
        left, right = join.source("left"), join.source("right")
        left.push(keys(*range(50)))
        right.push(keys(0))
        assert next(reader).num_rows == 1
        del dropped
        gc.collect()

        def push() -> None:
            for number in range(50):
                right.push(keys(number))
            join.close()

        thread = threading.Thread(target=push)
        thread.start()
        assert sum(rows.num_rows for rows in reader) == 50
        thread.join()
        assert failing.wait(120)
    assert isinstance(failing.error, ZeroDivisionError)


def test_a_slow_consumer_slows_the_sources_and_loses_nothing() -> None:
    with sj.live(SPEC, result_rows=8, queue_rows=8, **SCHEMAS) as join:
        left, right = join.source("left"), join.source("right")
        left.push(keys(7))
        reader = join.consumer()
        accepted = 0
        with pytest.raises(sj.BackPressureError, match="no room for more tuples within 0 s"):
            while True:
                right.push(keys(7), wait=False)
                accepted += 1
        with pytest.raises(sj.BackPressureError, match=r"within 0\.001 s"):
            while True:
                right.push(keys(7), timeout=0.001)
                accepted += 1
        pushing = threading.Thread(target=lambda: right.push(keys(7)))
        pushing.start()
        accepted += 1
        with pytest.raises(sj.BackPressureError, match=r"another push to source ''|no room"):
            while True:
                right.push(keys(7), wait=False)
                accepted += 1
        # What the queue, the join and the unread results hold, and the push that waits.
        assert 8 <= accepted < 40
        counted = 0
        while counted < accepted:
            counted += next(reader).num_rows
        pushing.join()
        join.close()
        assert list(reader) == []


def test_coroutines_push_and_read() -> None:
    async def run() -> int:
        rows = 0
        async with sj.live(SPEC, queue_rows=16, result_rows=16, **SCHEMAS) as join:
            left, right = join.source("left"), join.source("right")

            async def feed(source: Any) -> None:
                for number in range(200):
                    await source.push_async(keys(number))
                source.finish()

            async def close() -> None:
                await asyncio.gather(feed(left), feed(right))
                join.close()

            closing = asyncio.create_task(close())
            async for batch in join:
                rows += batch.num_rows
            await closing
            other = join.consumer()
            with pytest.raises(StopAsyncIteration):
                await other.read_async()
        return rows

    assert asyncio.run(run()) == 200


def test_a_cancelled_reader_and_a_closed_loop_lose_nothing() -> None:
    with sj.live(SPEC, **SCHEMAS) as join:

        async def wait_in_vain() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(aiter(join)), 0.01)

        asyncio.run(wait_in_vain())
        join.source("left").push(keys(1))
        join.source("right").push(keys(1))
        assert next(iter(join)).num_rows == 1


def test_schemas_may_come_with_the_first_pushes() -> None:
    with sj.live(SPEC, queue_rows=4) as join:
        left = join.source("left", "a")
        assert "chosen when the schemas" in join.explain()
        left.push([{"k": 1, "note": None}, {"k": 2, "note": None}])
        with pytest.raises(sj.BackPressureError, match="columns of the right side"):
            left.push([{"k": 3, "note": None}], wait=False)
        left.finish()
        right = join.source("right")
        with pytest.raises(sj.SchemaError, match="'k'"):
            right.push([{"other": 1}])
        right.push([{"k": 2, "y": 5}])
        assert join.schema is not None
        again = join.source("left", "a")
        again.push([{"k": 2, "note": "typed now"}])
        join.close()
        assert [row for rows in join for row in rows.to_pylist()] == [
            {"k": 2, "note": None, "y": 5},
            {"k": 2, "note": "typed now", "y": 5},
        ]


def test_arrays_and_frames_may_change_after_the_push() -> None:
    array, frame = np.array([1, 2]), pd.DataFrame({"k": [3, 4]})
    with sj.live(SPEC) as join:
        left = join.source("left")
        left.push({"k": array})
        left.push(frame)
        array[:], frame["k"] = 7, 7
        join.source("right").push([{"k": key, "y": 0} for key in (7, 4, 3, 2, 1)])
        join.close()
        assert [key for rows in join for key in rows["k"].to_pylist()] == [4, 3, 2, 1]


def test_a_one_sided_stream_has_no_rows() -> None:
    with sj.live(SPEC) as join:
        join.source("left").push([{"k": 1}])
        join.close()
        assert list(join) == []
        assert join.metrics()["pushed_left"] == 1


def test_result_columns_can_be_chosen() -> None:
    with sj.live(SPEC, columns=["y"]) as join:
        left, right = join.source("left"), join.source("right")
        left.push([{"k": 1, "x": "a"}])
        left.push([{"k": 1, "x": "b"}])
        right.push([{"k": 1, "y": 3}])
        join.close()
        assert [rows.to_pydict() for rows in join] == [{"y": [3, 3]}]


# -- event time ------------------------------------------------------------------------------------------------


def test_thousands_of_sources_come_and_go() -> None:
    with sj.live(TIMED, **SCHEMAS) as join:
        camera, reader = join.source("right", "camera"), iter(join)
        camera.push(at(0))
        for number in range(1, 3_000):
            with join.source("left", f"sensor-{number}") as sensor:
                sensor.push(at(number))
            if number % 500 == 0:
                camera.push(at(number))
        camera.finish()
        join.close()
        assert sum(rows.num_rows for rows in reader) == sum(
            1 for n in range(1, 3_000) for c in range(0, 3_000, 500) if abs(n - c) <= 1_000
        )
        figures = join.metrics()
        assert (figures["sources"], figures["sources_in_all"]) == (0, 3_000)


def test_an_idle_source_does_not_hold_back_the_others() -> None:
    clock = ManualClock()
    with sj.live(TIMED, idle="2 seconds", clock=clock, **SCHEMAS) as join:
        left, slow, right = join.source("left", "a"), join.source("left", "b"), join.source("right")
        reader = iter(join)
        slow.push(at(1))
        clock.turn(1)
        left.push(at(5, 9))
        right.push(at(6, 9))
        clock.turn(1.5)  # slow is silent for 2.5 seconds, the others for 1.5
        assert read_times(reader, 3) == [(1, 6), (5, 6), (9, 6)]
        slow.push(at(8, 12))  # 8 is behind the bound now; 12 makes the gate wait for it again
        left.push(at(20))
        right.push(at(20))
        assert read_times(reader, 5) == [(1, 9), (5, 9), (9, 9), (12, 6), (12, 9)]
        late = join.late()
        assert (late["source"].to_pylist(), late["t_left"].to_pylist()) == (["b"], [8])
        join.stop()


def test_all_sources_idle_is_not_the_end() -> None:
    clock = ManualClock()
    with sj.live(TIMED, idle=timedelta(seconds=1), clock=clock, **SCHEMAS) as join:
        left, right, reader = join.source("left"), join.source("right"), iter(join)
        left.push(at(1))
        right.push(at(5))
        clock.turn(1)
        assert read_times(reader, 1) == [(1, 5)]
        left.push(at(7))
        clock.turn(1)
        assert read_times(reader, 1) == [(7, 5)]
        join.stop()


def test_a_source_ahead_waits_and_the_one_behind_never_does() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(5), time="t", order="event_time", lateness=100)
    with sj.live(spec, queue_rows=10, **SCHEMAS) as join:
        ahead, behind, reader = join.source("left"), join.source("right"), join.consumer()
        with pytest.raises(sj.BackPressureError, match=r"in the gate, which waits for source ''|wait for the join"):
            for number in range(1_000):
                ahead.push(at(10_000 + number), wait=False)
        # Its tuples wait for the lateness to pass, and the gate is full: it may push all the same.
        for number in range(0, 9_000, 30):
            behind.push(at(number))
        join.close()
        assert list(reader) == []
        assert join.late().num_rows == 0


def test_time_and_position_reached_are_told() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow("1 minute"), time="t", order="event_time")
    now = datetime(2025, 1, 1, 12)
    with sj.live(spec, ordered=False) as join:
        left, right = join.source("left"), join.source("right")
        left.push([{"k": 1, "t": now}, {"k": 1, "t": now + timedelta(seconds=1)}])
        right.push([{"k": 1, "t": now + timedelta(seconds=5)}])
        left.advance(now + timedelta(seconds=3))
        reader = join.consumer()
        while reader.time != now + timedelta(seconds=3):
            assert reader.read() is not None
        assert reader.reached == 2
        with pytest.raises(sj.InputError, match="give a time of that type"):
            left.advance("yesterday")
        join.close()
        assert [rows.num_rows for rows in reader] == [2]
        assert reader.reached == 3


def test_late_rows_are_kept_apart() -> None:
    with sj.live(TIMED, **SCHEMAS) as join:
        left, right, reader = join.source("left", "a"), join.source("right"), iter(join)
        left.push(at(5))
        left.push(at(3))
        right.push(at(6))
        join.close()
        assert read_times(reader, 1) == [(5, 6)]
        assert join.wait(120)
        late = join.late()
        assert (late["reason"].to_pylist(), late["t_left"].to_pylist()) == (["late"], [3])
        assert join.late().num_rows == 0


# -- the end ---------------------------------------------------------------------------------------------------


def test_unread_rows_are_not_dropped_silently() -> None:
    with pytest.raises(sj.StateError, match="ended with 2 rows of the result unread"), sj.live(SPEC) as join:
        join.source("left").push(keys(1))
        join.source("right").push(keys(1, 1))
    with sj.live(SPEC) as join:
        join.source("left").push(keys(1))
        join.source("right").push(keys(1, 1))
        join.stop()


def test_consumers_in_other_threads_read_on_after_the_block() -> None:
    go_on, counts = threading.Event(), [0, 0]

    def read(number: int, consumer: Iterator[pa.RecordBatch]) -> None:
        if number:
            counts[number] += next(consumer).num_rows
        go_on.wait()
        counts[number] += sum(rows.num_rows for rows in consumer)

    with sj.live(SPEC, **SCHEMAS) as join:
        consumers = [join.consumer(), join.consumer()]
        threads = [threading.Thread(target=read, args=pair) for pair in enumerate(consumers)]
        for thread in threads:
            thread.start()
        join.source("left").push(keys(1))
        right = join.source("right")
        for _ in range(5):
            right.push(keys(1))
    go_on.set()
    for thread in threads:
        thread.join()
    assert counts == [5, 5]
    with (
        pytest.raises(sj.StateError, match="5 rows of the result unread"),
        sj.live(SPEC, result_rows=1, **SCHEMAS) as join,
    ):
        consumer = join.consumer()
        join.source("left").push(keys(1))
        join.source("right").push(keys(1, 1, 1, 1, 1))
        while join.metrics()["rows"] < 5:
            join.wait(0.001)
        join.source("left", "b").push(keys(2))
    assert list(consumer) == []


def test_the_end_of_the_block_waits_for_callbacks() -> None:
    rows: list[int] = []
    with sj.live(SPEC) as join:
        subscription = join.on_rows(lambda batch: rows.append(batch.num_rows))
        join.source("left").push(keys(1))
        join.source("right").push(keys(1, 1))
    assert rows == [2]
    assert subscription.error is None


@pytest.mark.parametrize("end", ["stop", "close"])
def test_a_callback_may_end_the_join(end: str) -> None:
    with sj.live(SPEC, **SCHEMAS) as join:
        join.on_rows(lambda rows: getattr(join, end)())
        join.source("left").push(keys(1))
        join.source("right").push(keys(1))
        assert join.wait(120)


def test_a_tuple_with_many_matches_makes_small_batches() -> None:
    with sj.live(SPEC, batch_rows=64, **SCHEMAS) as join:
        join.source("left").push(keys(*[1] * 50))
        join.source("right").push(keys(*[1] * 100))
        join.close()
        sizes = [rows.num_rows for rows in join]
    assert sum(sizes) == 5_000
    assert max(sizes) <= 64


def test_stop_ends_sources_and_consumers() -> None:
    with sj.live(SPEC, queue_rows=2, result_rows=2, **SCHEMAS) as join:
        left, right = join.source("left"), join.source("right")
        left.push(keys(1))
        reader = join.consumer()
        errors: list[BaseException] = []
        waiting = threading.Event()

        def push() -> None:
            try:
                while True:
                    right.push(keys(1, 1), wait=False)
            except sj.BackPressureError:
                waiting.set()
            try:
                while True:
                    right.push(keys(1, 1))
            except sj.StateError as error:
                errors.append(error)

        thread = threading.Thread(target=push)
        thread.start()
        waiting.wait()
        join.stop()
        thread.join()
        assert "was stopped" in str(errors[0])
        assert list(reader) == []
        join.stop()
        with pytest.raises(sj.StateError, match="was stopped"):
            join.source("left")


def test_after_close_nothing_is_taken() -> None:
    with sj.live(SPEC, **SCHEMAS) as join:
        left = join.source("left")
        join.close()
        join.close()
        assert join.wait(120)
        for call in (lambda: left.push(keys(1)), lambda: join.source("right"), lambda: left.advance(3)):
            with pytest.raises(sj.StateError):
                call()
        left.finish()
        assert list(join) == []


def test_ctrl_c_ends_cleanly() -> None:
    with pytest.raises(KeyboardInterrupt), sj.live(SPEC, **SCHEMAS) as join:
        left, right = join.source("left"), join.source("right")
        join.on_rows(lambda rows: os.kill(os.getpid(), signal.SIGINT))
        reader = join.consumer()
        left.push(keys(1))
        right.push(keys(1))
        for _ in reader:
            pass


class Interrupting:
    """Sends Ctrl-C while it is collected, where Python prints and drops what the handler raises."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_inside_a_finalizer_ends_a_wait_too(monkeypatch: pytest.MonkeyPatch) -> None:
    victims = [Interrupting()]
    with pytest.raises(KeyboardInterrupt), sj.live(SPEC, **SCHEMAS) as join:
        reader = join.consumer()
        condition: Any = reader._queue.filled
        release = condition._release_save

        def collect_and_release() -> Any:
            victims.clear()
            return release()

        monkeypatch.setattr(condition, "_release_save", collect_and_release)
        next(reader)
    assert not victims


def test_a_join_that_is_dropped_ends_its_threads() -> None:
    join = sj.live(TIMED, idle="1 hour", **SCHEMAS)
    source = join.source("left")
    source.push(at(1))
    before = [thread.name for thread in threading.enumerate() if thread.name.startswith("streamjoin-")]
    assert {"streamjoin-driver", "streamjoin-idle"} <= set(before)
    del join, source
    # The fixture finds whoever is left.


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_threads_do_not_follow_into_a_forked_child() -> None:
    with sj.live(SPEC, **SCHEMAS) as join:
        left, reader = join.source("left"), join.consumer()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            said = []
            for call in (lambda: left.push(keys(1)), join.metrics, lambda: next(reader), join.close, join.late):
                try:
                    call()
                except sj.StateError as error:
                    said.append("forked" in str(error))
            join.stop()
            os.write(write, repr(said).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            assert pipe.read() == b"[True, True, True, True, True]"
        os.waitpid(child, 0)
        left.push(keys(1))
        join.source("right").push(keys(1))
        assert next(reader).num_rows == 1


# -- what is wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "magic"}, "algorithm='magic'"),
        ({"workers": 0}, "workers=0"),
        ({"ordered": 1}, "ordered=1"),
        ({"idle": "2 seconds"}, "event_time"),
        ({"queue_rows": 0}, "queue_rows=0"),
        ({"result_bytes": -1}, "result_bytes=-1"),
        ({"columns": "k"}, "columns"),
        ({"left_schema": {"k": "int"}}, "left_schema"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(sj.SpecError, match=message):
        sj.live(SPEC, **settings)
    with pytest.raises(sj.SpecError, match="takes a JoinSpec"):
        sj.live("k")  # type: ignore[arg-type]
    with pytest.raises(sj.SpecError, match="at least a millisecond"):
        sj.live(TIMED, idle="3 nanoseconds")


def test_bad_input_is_refused_and_changes_nothing() -> None:
    with sj.live(TIMED, **SCHEMAS) as join:
        left, right = join.source("left", "a"), join.source("right")
        with pytest.raises(sj.InputError, match="open source 'a'"):
            join.source("left", "a")
        with pytest.raises(sj.InputError, match="'left' or 'right'"):
            join.source("middle")
        with pytest.raises(sj.InputError, match="string"):
            join.source("left", 7)  # type: ignore[arg-type]
        with pytest.raises(sj.InputError, match="missing t"):
            left.push([{"k": 1}])
        with pytest.raises(sj.InputError, match="must be"):
            left.push(5)
        with pytest.raises(sj.InputError, match="on_rows"):
            join.on_rows(5)  # type: ignore[arg-type]
        left.push(at())
        left.push(at(1))
        left.finish()
        left.finish()
        with pytest.raises(sj.StateError, match="'a' has finished"):
            left.push(at(2))
        right.push(at(2))
        join.close()
        assert read_times(iter(join), 1) == [(1, 2)]
        assert repr(left) == "<left source 'a': 1 tuples, finished>"
    with sj.live(SPEC) as join, pytest.raises(sj.StateError, match="event_time"):
        join.source("left").advance(3)
    with sj.live(TIMED) as join, pytest.raises(sj.StateError, match="needs the schemas of both sides"):
        join.source("left").advance(3)
    own = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(5), self_join=True)
    with sj.live(own) as join, pytest.raises(sj.InputError, match="self-join"):
        join.source("right")


def test_threads_come_and_go_while_a_join_runs() -> None:
    tables = [pa.table({"k": np.arange(4_000) * step % 97, "t": np.arange(4_000)}) for step in (3, 5)]
    with sj.open(SPEC, "sweep") as join:
        wanted = join.push(*tables, interleave=np.tile(np.repeat([False, True], 50), 80))
    with sj.live(SPEC, "pim_parallel") as live:
        live.set_workers(2)  # before there are any: the columns are not known
        sources = live.source("left"), live.source("right")

        def feed() -> None:
            for k, begin in enumerate(range(0, 4_000, 50)):
                for source, rows in zip(sources, tables, strict=True):
                    source.push(rows.slice(begin, 50))
                live.set_workers((4, 1, 7, 2)[k % 4])
            live.close()

        feeding = threading.Thread(target=feed)
        feeding.start()
        found = pa.Table.from_batches(list(live), live.schema)
        feeding.join()
    assert found == wanted
    with pytest.raises(sj.StateError, match="has ended"):
        live.set_workers(2)


def test_threads_may_change_while_the_last_rows_are_read() -> None:
    """The intake has ended, and does not begin again."""
    table = pa.table({"k": np.arange(30), "t": np.arange(30)})
    with sj.live(SPEC, "pim_parallel", 2, result_rows=1, batch_rows=1) as live:
        for side in ("left", "right"):
            live.source(side).push(table)
        live.close()
        run: Run = live._runner._run  # type: ignore[union-attr]
        while run.flowing:
            live.wait(0.001)
        live.set_workers(3)
        while len(run.crew._at_work) > 1:
            live.wait(0.001)
        assert sum(rows.num_rows for rows in live) == 30


@pytest.mark.parametrize("algorithm", ["auto", "scalejoin", "low_latency_handshake"])
def test_threads_of_other_live_joins_are_fixed_once_they_run(algorithm: str) -> None:
    spec = TIMED if algorithm == "scalejoin" else SPEC
    with sj.live(spec, algorithm) as join:
        join.set_workers(2)
        with pytest.raises(sj.SpecError, match="from 1 to"):
            join.set_workers(0)
        join.source("left").push(keys(1))
        join.source("right").push(keys(2))
        with pytest.raises(sj.NotSupportedError, match="is fixed"):
            join.set_workers(3)
        join.stop()
        with pytest.raises(sj.StateError, match="was stopped"):
            join.set_workers(3)


def push_twenty(join: sj.Live) -> None:
    """Push twenty tuples of both sides in turn, and have all their rows read."""
    join.on_rows(lambda rows: None)
    left, right = join.source("left"), join.source("right")
    for number in range(20):
        left.push(at(number))
        right.push(at(number))
    join.close()
    assert join.wait(120)


def test_metrics_tell_rates_queues_and_latencies_by_stage() -> None:
    with sj.live(TIMED, **SCHEMAS) as join:
        push_twenty(join)
        figures = join.metrics()
        latency = figures["latency"]
        assert list(latency) == ["queue", "gate", "join", "delivery"]
        assert latency["queue"]["p50"] <= latency["join"]["max"]
        assert latency["join"]["count"] == figures["rows"] == 400
        assert figures["rates"]["tuples"] > 0
        assert figures["threads"]["driver"]["join"] > 0
        assert (figures["pushed_left"], figures["waiting"], figures["reached"]) == (20, 0, 40)
        assert "behind one driver thread; output in result order" in join.explain()


@pytest.mark.parametrize("ordered", [True, False])
def test_ordered_output_waits_for_punctuations_and_says_how_much(ordered: bool) -> None:
    spec = dataclasses.replace(TIMED, order="arrival")
    with sj.live(spec, "low_latency_handshake", 2, ordered=ordered, **SCHEMAS) as join:
        push_twenty(join)
        figures = join.metrics()
    assert figures["rows"] == 400
    assert figures["unsorted_rows"] == 0
    assert 0 < figures["most_unsorted_rows"] <= 400 if ordered else figures["most_unsorted_rows"] == 0


@pytest.mark.parametrize("algorithm", ["scalejoin", "low_latency_handshake", "pim_parallel"])
@pytest.mark.parametrize("order", ["arrival", "event_time"])
def test_joins_with_threads_of_their_own_tell_latencies_by_stage_as_well(algorithm: str, order: str) -> None:
    spec = dataclasses.replace(TIMED, order=order)
    with sj.live(spec, algorithm, 2, **SCHEMAS) as join:
        push_twenty(join)
        latency = join.metrics()["latency"]
    assert list(latency) == ["queue", "gate", "join", "delivery"]
    assert latency["queue"]["count"] == latency["gate"]["count"] == 40
    assert latency["queue"]["max"] <= 1.1 * latency["gate"]["max"]
    assert latency["join"]["count"] == 400


@pytest.mark.parametrize("algorithm", ["auto", "low_latency_handshake"])
def test_a_live_join_says_what_it_is(algorithm: str) -> None:
    what = "Live inner on l.k = r.k, window 10 tuples, arrival"
    schema = pa.schema([("k", pa.int64())])
    with sj.live(sj.JoinSpec(on="k", window="10 rows"), algorithm) as join:
        assert repr(join) == f"<{what}; no algorithm yet; 0 open sources>"
    with sj.live(sj.JoinSpec(on="k", window="10 rows"), algorithm, left_schema=schema, right_schema=schema) as join:
        held = "algorithm nested_loop; 0 left and 0 right rows in the windows"
        assert repr(join) == f"<{what}; {held if algorithm == 'auto' else f'algorithm {algorithm}; 0 open sources'}>"
        join.stop()
        assert repr(join).endswith("; stopped>")
