"""What a small batch is spared, and that what it rests on still holds: jobs of a batch, files of a checkpoint."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamjoin.spark import join
from streamjoin.spark.runtime import driver_classes
from tests.spark.joining import CASES, stream, streams, tables, write_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BAND = CASES[0]
BATCHES = 2
ADAPTIVE, UNION = "spark.sql.adaptive.streaming.stateless.enabled", "spark.sql.unionOutputPartitioning"


def jobs(spark: SparkSession, directory: Path, ordered: bool) -> int:
    """How many a join over two batches takes."""
    write_files(directory, tables(BAND, *stream(BAND, seed=8, n=60), BATCHES))
    joined = join(*streams(spark, directory, BAND.left, BAND.right), BAND.bound_spec(), partitions=2, ordered=ordered)
    writer = joined.writeStream.format("noop").option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert len([report for report in query.recentProgress if report["numInputRows"]]) == BATCHES
    spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty(120_000)
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId)))


@pytest.mark.spark
@pytest.mark.parametrize("ordered", [False, True])
def test_a_batch_is_one_job_whatever_its_shuffles(spark: SparkSession, tmp_path: Path, ordered: bool) -> None:
    assert jobs(spark, tmp_path, ordered) == BATCHES
    assert ADAPTIVE not in spark.conf.getAll, "other queries of the session run as they did"


@pytest.mark.spark
def test_adaptive_execution_stays_where_it_was_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(ADAPTIVE, "true")
    try:
        assert jobs(spark, tmp_path, ordered=False) == 2 * BATCHES
    finally:
        spark.conf.unset(ADAPTIVE)


def readers(spark: SparkSession, directory: Path) -> set[int]:
    """How many tasks read the sources of a batch, each of which has one partition."""
    write_files(directory, tables(BAND, *stream(BAND, seed=9, n=60), BATCHES))
    left, right = (side.coalesce(1) for side in streams(spark, directory, BAND.left, BAND.right))
    writer = join(left, right, BAND.bound_spec(), partitions=2).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty(120_000)
    tracker: Any = spark.sparkContext.statusTracker()
    stages = [min(tracker.getJobInfo(job).stageIds) for job in tracker.getJobIdsForGroup(str(query.runId))]
    return {tracker.getStageInfo(stage).numTasks for stage in stages}


@pytest.mark.spark
def test_sources_of_one_partition_each_have_a_task_each(spark: SparkSession, tmp_path: Path) -> None:
    assert readers(spark, tmp_path / "usual") == {2}
    spark.conf.set(UNION, "true")
    try:
        assert readers(spark, tmp_path / "asked for") == {1}
    finally:
        spark.conf.unset(UNION)


def files_in(spark: SparkSession, path: str) -> Any:
    """What Spark writes the files of a checkpoint with, if it lies there."""
    jvm: Any = spark._jvm
    create = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.create
    return create(jvm.org.apache.hadoop.fs.Path(path), spark._jsparkSession.sessionState().newHadoopConf())


@pytest.mark.spark
def test_a_file_of_a_checkpoint_is_there_whole_or_not_at_all(spark: SparkSession, tmp_path: Path) -> None:
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    path, place = tmp_path / "17", jvm.org.apache.hadoop.fs.Path(str(tmp_path / "17"))
    files = files_in(spark, str(tmp_path))
    assert files.getClass().getName() == driver_classes.CHECKPOINT_CLASS

    def begun(text: str, replace: bool) -> Any:
        begun_ = files.createAtomic(place, replace)
        begun_.write(text.encode())
        return begun_

    def read() -> bytes:
        file = files.open(place)
        try:
            # Checksums are verified on the way.
            return bytes(file.readAllBytes())
        finally:
            file.close()

    first, second = begun("first", False), begun("second", False)
    assert not path.exists()
    first.close()
    assert read() == path.read_bytes() == b"first"
    with pytest.raises(Py4JJavaError, match="FileAlreadyExists"):
        second.close()
    second.cancel()
    begun("never", True).cancel()
    assert read() == b"first"
    begun("again", True).close()
    assert read() == path.read_bytes() == b"again"
    assert path.stat().st_mode & 0o777 == 0o644
    assert (tmp_path / ".17.crc").exists()
    path.write_bytes(b"wrong")
    with pytest.raises(Py4JJavaError, match="ChecksumException"):
        read()


@pytest.mark.spark
def test_an_overwritten_file_never_has_the_checksums_of_the_one_before(spark: SparkSession, tmp_path: Path) -> None:
    """As a crash right after the file was renamed leaves it."""
    jvm: Any = spark._jvm
    files = files_in(spark, str(tmp_path))
    place = jvm.org.apache.hadoop.fs.Path(str(tmp_path / "17"))
    for text in (b"first", b"again"):
        file = files.createAtomic(place, True)
        file.write(text)
        if text == b"again":
            # Without a checksum file to rename, the second rename fails after the first is done.
            (sums,) = tmp_path.glob("..17.*.crc")
            file.hflush()
            sums.unlink()
            with pytest.raises(Exception, match="NoSuchFile"):
                file.close()
        else:
            file.close()
    opened = files.open(place)
    assert bytes(opened.readAllBytes()) == b"again"
    opened.close()


@pytest.mark.spark
def test_other_file_systems_are_left_to_spark(spark: SparkSession) -> None:
    from py4j.protocol import Py4JJavaError

    held = files_in(spark, "webhdfs://127.0.0.1:9/checkpoint")
    field = held.getClass().getDeclaredField("manager")
    field.setAccessible(True)
    assert field.get(held).getClass().getSimpleName() == "FileContextBasedCheckpointFileManager"
    with pytest.raises(Py4JJavaError, match="UnsupportedFileSystemException"):
        files_in(spark, "nowhere://host/checkpoint")


@pytest.mark.spark
def test_who_chose_how_to_write_is_left_alone(spark: SparkSession) -> None:
    other = spark.newSession()
    other.conf.set(driver_classes.CHECKPOINT_FILES, "some.Class")
    assert not driver_classes.write_without_processes(other)
    assert other.conf.get(driver_classes.CHECKPOINT_FILES) == "some.Class"


@pytest.mark.spark
def test_spark_keeps_its_own_way_where_the_class_is_not_to_be_had(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_classes, "CHECKPOINT_CLASS", "streamjoin.spark.Nowhere")
    monkeypatch.setattr(driver_classes, "cache_dir", lambda: tmp_path)
    other = spark.newSession()
    assert not driver_classes.write_without_processes(other)
    assert other.conf.get(driver_classes.CHECKPOINT_FILES, None) is None
    assert list(tmp_path.iterdir()) == [], "what did not load is not kept"


@pytest.mark.spark
def test_of_queries_that_write_one_file_at_once_one_succeeds(spark: SparkSession, tmp_path: Path) -> None:
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    files = files_in(spark, str(tmp_path))
    for number in range(20):
        place = jvm.org.apache.hadoop.fs.Path(str(tmp_path / str(number)))
        drafts = [files.createAtomic(place, False) for _ in range(4)]
        for n, draft in enumerate(drafts):
            draft.write(str(n).encode())
        barrier = threading.Barrier(len(drafts))
        closed: list[int] = []

        def close(n: int, draft: Any, barrier: threading.Barrier = barrier, closed: list[int] = closed) -> None:
            barrier.wait()
            try:
                draft.close()
                closed.append(n)
            except Py4JJavaError as error:
                assert "FileAlreadyExists" in str(error.java_exception)

        threads = [threading.Thread(target=close, args=(n, draft)) for n, draft in enumerate(drafts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [(tmp_path / str(number)).read_text()] == [str(n) for n in closed]
