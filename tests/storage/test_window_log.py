"""The window log as files: publishing, versions, merging, ranges, and everything that can be wrong with them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.model.errors import CheckpointError, SetupError
from streamjoin.spark.runtime.checkpoints import joins_in
from streamjoin.spark.stages.late import late
from streamjoin.storage import log as log_module
from streamjoin.storage.log import WindowLog, late_files, new_epoch
from streamjoin.storage.manifest import EMPTY, NOTHING, Manifest, PieceRef, StoredRun
from streamjoin.storage.merging import MergePolicy, RunStatistics, alive, due, first_folded, horizons
from streamjoin.storage.pieces import Block, BlockRows, MappedPiece, atomic, read_footer, write_piece
from streamjoin.storage.places import Place, entries, place
from streamjoin.storage.ranges import (
    LEAST,
    MOST,
    WHOLE,
    SplitPoints,
    WordRange,
    sample,
    shared_split_points,
    split_points,
    thinned,
)
from tests.spark.joining import CASES, Case, blueprint, in_process, stream, tables

BAND = CASES[0]


def _batch(*words: int) -> BlockRows:
    return BlockRows(pa.record_batch({"#word": pa.array(words, pa.int64())}), words[0], words[-1])


def _filled(root: Path, batches: int, partitions: int = 2, case: Case = BAND) -> WindowLog:
    left, right = stream(case, seed=1, n=40 * batches)
    plan = blueprint(case, partitions)
    for i, sides in enumerate(tables(case, left, right, batches)):
        in_process(plan, root, i, sides)
    return WindowLog(root, 1, plan)


# Files


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    with pytest.raises(RuntimeError), atomic(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert list(path.parent.iterdir()) == []
    with atomic(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_piece_is_read_where_it_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "a.piece"
    write_piece(path, ([_batch(1, 5), _batch(7)], [_batch(2)]), {"batch": 3})
    footer = read_footer(path)
    assert footer["batch"] == 3
    blocks = [[Block(*block) for block in side] for side in footer["blocks"]]
    assert [(b.rows, b.first, b.last) for b in blocks[0]] == [(2, 1, 5), (1, 7, 7)]
    assert all(b.offset % 64 == 0 for side in blocks for b in side)
    before = pa.total_allocated_bytes()
    batch = MappedPiece(path).batch(blocks[0][0], _batch(0).batch.schema)
    assert batch.column(0).to_pylist() == [1, 5]
    assert pa.total_allocated_bytes() == before


def test_the_first_to_publish_a_piece_wins(tmp_path: Path) -> None:
    path = tmp_path / "a.piece"
    write_piece(path, ([_batch(1)], []), {"who": "first"})
    write_piece(path, ([_batch(1)], []), {"who": "second"})
    assert read_footer(path)["who"] == "first"


@pytest.mark.parametrize("harm", ["cut", "flipped footer", "empty", "foreign"])
def test_a_damaged_footer_is_told(harm: str, tmp_path: Path) -> None:
    path = tmp_path / "a.piece"
    write_piece(path, ([_batch(1, 2, 3)], []), {})
    whole = path.read_bytes()
    broken = {
        "cut": whole[:-7],
        "flipped footer": whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:],
        "empty": b"",
        "foreign": b"PAR1" * 100,
    }
    path.write_bytes(broken[harm])
    with pytest.raises(CheckpointError, match="damaged or not a piece"):
        read_footer(path)


def test_damaged_rows_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.piece"
    write_piece(path, ([_batch(1, 2, 3)], []), {})
    block = Block(*read_footer(path)["blocks"][0][0])
    whole = bytearray(path.read_bytes())
    whole[block.offset + block.length - 8] ^= 1
    path.write_bytes(whole)
    with pytest.raises(CheckpointError, match="damaged"):
        MappedPiece(path).batch(block, _batch(0).batch.schema)
    with pytest.raises(CheckpointError, match="is missing"):
        MappedPiece(tmp_path / "b.piece")


# Versions


def test_a_manifest_is_the_same_whoever_makes_it(tmp_path: Path) -> None:
    log = _filled(tmp_path, 4)
    first = log.version(3)
    path = next(tmp_path.glob("versions/0000000003/*.manifest"))
    made = path.read_bytes()
    path.unlink()
    assert log.version(3) == first
    assert path.read_bytes() == made
    assert Manifest.from_json(made) == first


def test_before_the_first_batch_there_is_nothing(tmp_path: Path) -> None:
    assert WindowLog(tmp_path, 1, blueprint(BAND, 2)).version(-1) == EMPTY


def test_a_version_without_all_pieces_is_refused(tmp_path: Path) -> None:
    log = _filled(tmp_path, 4)
    next(tmp_path.glob("versions/0000000003/*.00001-of-00002.piece")).unlink()
    with pytest.raises(CheckpointError, match="does not hold batch 3"):
        log.version(3)


def test_a_foreign_or_damaged_manifest_is_told(tmp_path: Path) -> None:
    log = _filled(tmp_path, 3)
    log.version(2)
    path = next(tmp_path.glob("versions/0000000002/*.manifest"))
    for text in (b"", b"{}", b"[1]", b'{"batch": 1}'):
        path.write_bytes(text)
        with pytest.raises(CheckpointError, match="damaged"):
            log.version(2)


def test_a_log_of_another_join_is_refused(tmp_path: Path) -> None:
    _filled(tmp_path, 2)
    for manifest in tmp_path.rglob("*.manifest"):
        manifest.unlink()
    other = blueprint(Case(**{**BAND.__dict__, "windows": (1, 2)}), 2)
    with pytest.raises(CheckpointError, match="belongs to another join"):
        WindowLog(tmp_path, 2, other).version(1)


def test_the_newest_start_that_finished_a_batch_counts(tmp_path: Path) -> None:
    left, right = stream(BAND, seed=1, n=40)
    (sides,) = tables(BAND, left, right, 1)
    in_process(blueprint(BAND, 2), tmp_path, 0, sides, epoch=1)
    in_process(blueprint(BAND, 3), tmp_path, 0, sides, epoch=2)
    in_process(blueprint(BAND, 3), tmp_path, 0, sides, epoch=3, only=[0, 2])
    version = WindowLog(tmp_path, 4, blueprint(BAND, 3)).version(0)
    assert version.epoch == 2
    assert {ref.file[-14:] for ref in version.runs[0].pieces} == {f"{p:05}-of-00003.piece"[-14:] for p in range(3)}


def test_only_what_no_restart_needs_is_removed(tmp_path: Path) -> None:
    log = _filled(tmp_path, 12)
    kept = {int(path.name) for path in (tmp_path / "versions").iterdir()}
    before = log.version(10)
    needed = {int(file.split("/")[0]) for file in before.files}
    assert kept == needed | {9, 10, 11}
    for file in before.files:
        assert (tmp_path / "versions" / file).exists()
    names = {path.name for path in (tmp_path / "versions/0000000009").iterdir()}
    assert {name for name in names if f"0000000009/{name}" not in before.files} == {"00000001.manifest"}


def test_drafts_of_killed_tasks_are_removed(tmp_path: Path) -> None:
    left, right = stream(BAND, seed=1, n=400)
    plan = blueprint(BAND, 1)
    for i, sides in enumerate(tables(BAND, left, right, 8)):
        in_process(plan, tmp_path, i, sides)
        (tmp_path / f"versions/{i:010}/.left.piece.behind").write_bytes(b"half")
    assert len(list(tmp_path.rglob(".left*"))) <= 3


# Starts


def test_every_start_gets_a_number_of_its_own(tmp_path: Path) -> None:
    description = blueprint(BAND, 2).description
    numbers = [new_epoch(tmp_path, description) for _ in range(3)]
    assert numbers == sorted(set(numbers))
    for entry in (tmp_path / "epochs").iterdir():
        entry.unlink()
    far = 1 << 60
    (tmp_path / "epochs" / str(far)).touch()
    assert new_epoch(tmp_path, description) == far + 1


def test_a_start_with_another_join_says_what_changed(tmp_path: Path) -> None:
    new_epoch(tmp_path, blueprint(BAND, 2).description)
    assert new_epoch(tmp_path, blueprint(BAND, 7).description) > 1
    other = blueprint(Case(**{**BAND.__dict__, "windows": (40, 41)}), 2).description
    with pytest.raises(CheckpointError, match="right window was '40 ms' and is now '41 ms'"):
        new_epoch(tmp_path, other)
    (tmp_path / "join.json").write_text("[]")
    with pytest.raises(CheckpointError, match="does not describe a join"):
        new_epoch(tmp_path, other)
    (tmp_path / "join.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        new_epoch(tmp_path, other)


def test_a_log_of_another_format_is_refused(tmp_path: Path) -> None:
    description = blueprint(BAND, 2).description
    (tmp_path / "join.json").write_text(json.dumps({**description, "format": "0"}))
    with pytest.raises(
        CheckpointError, match=r"has format 0 .* reads format 2\. Nothing was changed: run the version that wrote it"
    ):
        new_epoch(tmp_path, description)


def test_late_rows_come_from_the_newest_start_of_a_batch(tmp_path: Path) -> None:
    root = tmp_path / "streamjoin" / "join"
    plan = blueprint(BAND, 2)
    new_epoch(root, plan.description)
    assert late(tmp_path).num_rows == 0
    rows = pa.table({"x": [1]})
    WindowLog(root, 1, plan).write_late(4, 0, rows)
    WindowLog(root, 1, plan).write_late(4, 1, rows)
    WindowLog(root, 2, plan).write_late(4, 0, rows)
    WindowLog(root, 1, plan).write_late(3, 1, rows)
    assert [(batch, path.name[11:19]) for batch, path in late_files(root)] == [(3, "00000001"), (4, "00000002")]
    assert late(tmp_path).num_rows == 2
    assert late(f"file:{tmp_path}").num_rows == 2
    with pytest.raises(CheckpointError, match="no join called 'other'"):
        late(tmp_path, "other")
    late_files(root)[0][1].write_bytes(b"?")  # type: ignore[union-attr]
    with pytest.raises(CheckpointError, match="damaged"):
        late(tmp_path)


@pytest.mark.parametrize(
    ("location", "path"),
    [("/a b/c", "/a b/c"), ("file:/a/b", "/a/b"), ("file:///a/b", "/a/b"), ("relative", "relative")],
)
def test_a_checkpoint_is_a_path(location: str, path: str) -> None:
    assert place(location) == Path(path)


def test_a_checkpoint_that_nothing_can_reach_is_refused() -> None:
    with pytest.raises(SetupError, match="on nowhere:, which Arrow can't reach"):
        place("nowhere://bucket/checkpoint")


def test_the_joins_of_a_plan_are_found_by_their_tokens() -> None:
    plan = f"MapInArrow streamjoin_task_{'0' * 32}(x#1)\n  Union\n MapInArrow streamjoin_task_{'a' * 32}(y#2)"
    assert joins_in(plan) == ["0" * 32, "a" * 32]


# Merging


def test_the_number_of_runs_is_logarithmic() -> None:
    rng = random.Random(1)
    runs: list[tuple[RunStatistics, RunStatistics]] = []
    written = 0
    for _ in range(3000):
        fresh = rng.randint(90, 110)
        first = first_folded(runs, (LEAST, LEAST), 100, MergePolicy(floor=0, runs=1, inline=1 << 30))
        folded = sum(left.rows for left, _ in runs[first:]) + fresh
        written += folded
        runs[first:] = [(RunStatistics(folded, 0, 1), RunStatistics(0, 0, 0))]
        assert len(runs) <= 13
    assert written < 3000 * 100 * 13


def test_small_runs_are_always_folded() -> None:
    runs = [(RunStatistics(1000, 0, 1), RunStatistics(1000, 0, 1)), (RunStatistics(1, 0, 1), RunStatistics(0, 0, 0))]
    assert first_folded(runs, (LEAST, LEAST), 10, MergePolicy(slack=100, floor=2011)) == 0
    assert first_folded(runs, (LEAST, LEAST), 10, MergePolicy(slack=100, floor=5)) == 1


def test_merges_that_are_too_large_for_the_driver_are_done_by_all_tasks() -> None:
    runs = [(RunStatistics(n, 0, 1), RunStatistics(0, 0, 0)) for n in (1000, 900, 60)]
    policy = MergePolicy(floor=0, runs=1, inline=50, background=1500)
    assert due(runs[:2], (LEAST, LEAST), policy) is None
    assert due(runs[:2], (LEAST, LEAST), replace(policy, background=1900)) == (0, 2)
    # Geometrically: a merge takes what is not much larger than all newer rows together.
    assert [first_folded(runs, (LEAST, LEAST), fresh, policy) for fresh in (50, 600, 700)] == [3, 3, 0]
    assert first_folded(runs, (LEAST, LEAST), 700, replace(policy, background=1960)) == 3


def test_an_expired_run_counts_as_small() -> None:
    old, new = (
        (RunStatistics(10_000, 0, 99), RunStatistics(0, 0, 0)),
        (RunStatistics(100, 90, 99), RunStatistics(0, 0, 0)),
    )
    policy = MergePolicy(floor=0, runs=1)
    assert first_folded([old, new], (0, 0), 100, policy) == 1
    assert first_folded([old, new], (99, 0), 100, policy) == 0
    assert (alive(old[0], 100), alive(old[0], 50), alive(old[0], -5)) == (0, 5000, 10_000)


def test_horizons_follow_the_other_sides_clock() -> None:
    assert horizons((100, 70), (10, 20), 5) == (70 - 5 - 10, 100 - 5 - 20)
    assert horizons((100, None), (10, 20), 0) == (LEAST, 80)
    assert horizons((LEAST, 0), (10, 20), 5)[1] == LEAST


# Ranges


def test_ranges_cover_every_word_once() -> None:
    words = np.array([LEAST, LEAST + 1, 4, 5, 5, 5, 5, 5, 5, 6, 9, MOST], np.int64)
    for samples in ([], [(5, 10)], [(5, 1), (5, 1), (9, 1)], [(5, 9), (5, 9), (9, 1)], [(LEAST, 3), (MOST, 3)]):
        for partitions in (1, 2, 5):
            for points in (split_points(samples, partitions), shared_split_points(partitions)):
                assert points.ranges == partitions
                parts = [points.word_range(p).part(words) for p in range(partitions)]
                assert [begin for begin, _ in parts] == [0, *(end for _, end in parts[:-1])]
                assert parts[-1][1] == words.size
                for word, p in zip(words, points.owners(words, 3), strict=True):
                    assert points.word_range(p).touched(word, word)
                lo, hi = (own.ravel() for own in np.meshgrid(words, words))
                lo, hi = lo[lo <= hi], hi[lo <= hi]
                first, last = points.range_of(lo, 0), points.range_of(hi, WHOLE - 1)
                for p in range(partitions):
                    exceeded = points.word_range(p).exceeded(lo, hi)
                    assert exceeded.tolist() == ((first != p) | (last != p)).tolist()


def test_a_range_opens_the_blocks_that_it_overlaps() -> None:
    rng = np.random.default_rng(3)
    ends = np.sort(rng.integers(0, 40, (30, 2))).tolist()
    blocks = [Block(i, 1, 1, first, last, 0) for i, (first, last) in enumerate(ends)]
    pieces = tuple(PieceRef(f"{i}", (tuple(blocks[3 * i : 3 * i + 3]), ())) for i in range(10))
    run = StoredRun(0, (NOTHING, NOTHING), (), pieces)
    for _ in range(50):
        first, last = ((int(word), int(share)) for word, share in rng.integers((0, 0), (40, 2), (2, 2)))
        for words in (WordRange(first, last), WordRange(first, None)):
            wanted = [b for b in blocks if b.last >= first[0] and (words.last is None or (b.first, 0) < words.last)]
            assert [block for _, block in run.overlapping(0, words)] == wanted
            assert [file for file, _ in run.overlapping(0, words)] == [f"{block.offset // 3}" for block in wanted]
    assert not [*run.overlapping(1, WordRange((LEAST, 0), None))]


def test_tasks_of_one_process_look_once_for_the_version_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = blueprint(CASES[0], 40)
    seen: list[str] = []
    batches = tables(CASES[0], *stream(CASES[0], seed=1, n=60), 3)
    for batch in (0, 1):
        in_process(plan, tmp_path, batch, batches[batch])

    def noted(directory: Place) -> list[Place]:
        seen.append(directory.name)
        return entries(directory)

    monkeypatch.setattr(log_module, "entries", noted)
    in_process(plan, tmp_path, 2, batches[2])
    # The first writes the manifest, and the second reads it.
    assert seen.count(f"{1:010}") == 2


def test_cuts_follow_the_quantiles() -> None:
    words = np.sort(np.random.default_rng(0).normal(0, 1e6, 100_000).astype(np.int64))
    samples = thinned(sample(words[:70_000], 500) + sample(words[70_000:], 20), 256)
    assert len(samples) <= 256
    assert sum(rows for _, rows in samples) == 100_000
    points = split_points(samples, 8)
    assert not points.shares.any()
    shares = np.diff([0, *np.searchsorted(words, points.words), words.size])
    assert shares.min() > 0.8 * words.size / 8


@pytest.mark.parametrize("partitions", [2, 3, 4, 7, 16])
def test_a_heavy_word_is_cut_within(partitions: int) -> None:
    """Half of the rows under one word: ranges hold as many rows all the same, stored and new."""
    rng = np.random.default_rng(0)
    words = np.where(rng.random(100_000) < 0.5, 7, rng.integers(-1000, 1000, 100_000))
    points = split_points(thinned(sample(np.sort(words), 256), 256), partitions)
    stored = [end - begin for begin, end in (points.word_range(p).part(np.sort(words)) for p in range(partitions))]
    new = np.bincount(points.owners(words, 0), minlength=partitions)
    for shares in (stored, new):
        assert sum(shares) == words.size
        assert max(shares) < 1.2 * words.size / partitions
    assert SplitPoints.from_json(points.to_json()).shares.tolist() == points.shares.tolist()


def test_who_can_match_a_heavy_word_probes_all_its_ranges() -> None:
    points = SplitPoints(np.array([5, 7, 7, 7, 9], np.int64), np.array([0, 0, WHOLE // 3, WHOLE // 2, 0], np.int64))
    word = np.full(4, 20, np.int64)
    lo, hi = np.array([7, 6, 8, 0], np.int64), np.array([7, 6, 8, 5], np.int64)
    row, target = points.copies(points.owners(word, 0), lo, hi)
    assert sorted(zip(row.tolist(), target.tolist(), strict=True)) == [
        (0, 2), (0, 3), (0, 4), (1, 1), (2, 4), (3, 0), (3, 1)
    ]  # fmt: skip
    assert set(points.owners(np.full(10, 7, np.int64), 0).tolist()) == {2, 3, 4}


def test_a_row_near_a_boundary_is_sent_to_both_sides() -> None:
    points = SplitPoints(np.array([10, 20, 30], np.int64), np.zeros(3, np.int64))
    word = np.array([5, 15, 12, 40, 9], np.int64)
    lo, hi = np.array([4, 8, 35, 50, 9], np.int64), np.array([6, 31, 36, 1, 10], np.int64)
    owner = points.owners(word, 0)
    assert owner.tolist() == [0, 1, 1, 3, 0]
    rows, targets = points.copies(owner, lo, hi)
    sent = sorted(zip(rows.tolist(), targets.tolist(), strict=True))
    assert sent == [(1, 0), (1, 2), (1, 3), (2, 3), (4, 1)]


def test_late_rows_are_kept_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest files go first; the newest batches and what others are writing stay."""
    log = WindowLog(tmp_path, 1, blueprint(CASES[0], 1))
    rows = pa.table({"x": [1, 2, 3]})
    for batch in range(4):
        log.write_late(batch, 0, rows)
    draft = tmp_path / "late" / ".0000000000.draft"
    draft.write_bytes(b"x" * 10_000)
    monkeypatch.setenv("STREAMJOIN_LATE_BYTES", "1")
    log.write_late(4, 0, rows)
    assert [batch for batch, _ in late_files(tmp_path)] == [2, 3, 4]
    assert draft.exists()
