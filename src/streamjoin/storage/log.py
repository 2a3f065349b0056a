"""The window log: the state of a join as immutable files under the query's checkpoint, one version per batch.

    join.json                            what the log belongs to
    epochs/<n>                           one per start of the query
    runs/<id>                            the number of a start that its tasks registered (`claims.py`)
    versions/<batch>/<epoch>.<range>-of-<ranges>.piece   the rows that a task stored, and which matched (`marks`)
    versions/merged/<batch>.<epoch>.merge   runs of that version, merged in the background
    versions/<batch>/<epoch>.gate        the gate's progress after the batch, and its waiting rows
    versions/<batch>/<epoch>.<range>.spent   the time that a task spent on starting, if any
    versions/<batch>/<epoch>.manifest    the whole version, written when the next batch needs it
    versions/<batch>/<epoch>.<random>.rows   rows on their way from task to task; removed after the batch
    late/<batch>.<epoch>.<range>.arrow   rows that were not joined
    partitions.json                      the number of ranges that a user requested

A version is complete when all pieces of one epoch exist; if several epochs are complete, the newest counts. A batch
that runs again after a restart writes pieces of a new epoch next to the old ones, so a task that is left over from an
earlier start can't overwrite them. A version is removed once no restart can need it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin._version import __version__
from streamjoin.model.errors import CheckpointError
from streamjoin.storage.blueprint import ANY_ORDER, FORMAT, Blueprint
from streamjoin.storage.cache import has_copy, is_fixed, keep_note, kept_note, mapped_fixed
from streamjoin.storage.claims import claim, claim_for_run, claims, refuse_superseded
from streamjoin.storage.manifest import EMPTY, Manifest, assemble
from streamjoin.storage.pieces import BothSidesRows, MappedPiece, atomic, damaged, identity, read_footer, write_piece
from streamjoin.storage.places import Place, RemotePath, entries, in_order, remove_files, remove_oldest, tree

LATE_BYTES = 4 << 30
"""The bytes of late rows that a log keeps, unless the environment variable STREAMJOIN_LATE_BYTES says otherwise."""

_logger = logging.getLogger(__name__)
_PIECE = re.compile(r"(\d+)\.(\d+)-of-(\d+)\.piece")
_MERGED = "merged"
_DESCRIPTION = "join.json"
_LATE = re.compile(r"(\d+)\.(\d+)\.\d+\.arrow")

# Mapped pieces by log, shared by the tasks that one worker process runs after each other.
_mapped: dict[str, dict[str, MappedPiece]] = {}
# The newest manifests that this process has parsed, by path and identity of the file: its tasks read the same ones.
_parsed: dict[tuple[str, Any], Manifest] = {}
_MOST_PARSED = 8


class WindowLog:
    """One join's log, as one start of its query sees it."""

    SPOOLED = ".rows"

    def __init__(self, root: Place, epoch: int, blueprint: Blueprint, end: int | None = None) -> None:
        self.root = root
        self.epoch = epoch
        self.end = end
        """The batch of this start that is the end of input, if one is planned."""
        self._blueprint = blueprint
        self._listing: dict[str, list[Place]] | None = None

    def version(self, batch: int, *, keep: bool = True) -> Manifest:
        """The version after `batch`; if it has to be assembled, `keep` says whether to write its manifest.

        The manifest must be written before the next version, which is based on it, is complete.
        """
        if batch < 0:
            return EMPTY
        known = self._assembled(batch, keep)
        if known is not None:
            return known
        epoch, names = self._complete(batch)
        path = self._manifest(batch, epoch)
        if path.name in names:
            return _read_manifest(path)
        try:
            return self._assemble(batch, path, [name for name in names if _PIECE.fullmatch(name)], keep)
        except CheckpointError:
            # Another task may have written the manifest meanwhile and removed the files it was assembled from.
            if not path.exists():
                raise
            return _read_manifest(path)

    def latest(self, batch: int) -> Manifest:
        """The version after `batch`, or, where it is gone because batches went on, after the newest complete one."""
        try:
            return self.version(batch)
        except CheckpointError:
            # The newest may be under way.
            complete = max(self._versions(), default=0) - 1
            if complete <= batch:
                raise
            return self.version(complete)

    def refuse_superseded(self) -> None:
        """Raise StateError if another start has taken over the checkpoint."""
        refuse_superseded(self.root, self.epoch)

    def _assembled(self, batch: int, keep: bool) -> Manifest | None:
        """The version that a worker of this host has assembled in this start, without a look at the other files."""
        path = self._manifest(batch, self.epoch)
        if isinstance(path, Path):
            return _parsed_before(path)
        note = kept_note(path) if isinstance(path, RemotePath) and is_fixed(path) else None
        if note is None:
            return None
        if keep and isinstance(path, RemotePath) and not has_copy(path):
            with atomic(path, once=True) as file:
                file.write(note)
        return Manifest.from_json(note)

    def publish(
        self,
        batch: int,
        partition: int,
        of: int,
        sides: BothSidesRows,
        facts: Mapping[str, Any],
        marks: Mapping[str, Array] | None = None,
    ) -> None:
        """Write the piece of one of `of` ranges; `facts` goes into its footer, for the manifest.

        `marks` are the tuples of the range that matched in the batch, in an outer, semi or anti join.
        """
        path = self._directory(batch) / f"{self.epoch:08}.{partition:05}-of-{of:05}.piece"
        write_piece(path, sides, self._signed(batch, facts), marks)

    def marks(self, batch: int, epoch: int) -> list[tuple[dict[str, Any], MappedPiece]]:
        """The footers and arrays with the marks that the tasks of one start wrote."""
        files = []
        for path in self.pieces(batch, epoch):
            footer = read_footer(path)
            if "arrays" not in footer:
                # Earlier versions wrote them to a file of their own.
                path = self._directory(batch) / f"{path.name.partition('-of-')[0]}.marks"
                footer = read_footer(path)
            self._check(path, footer)
            files.append((footer, MappedPiece(path)))
        return files

    @property
    def blueprint(self) -> Blueprint:
        """The join whose log it is."""
        return self._blueprint

    @property
    def least_spooled(self) -> int | None:
        """From how many bytes on rows go from task to task in a file; None for never."""
        return self._blueprint.spool

    def spool(self, batch: int) -> Place:
        """The directory of files with rows on their way."""
        return self._directory(batch)

    def pieces(self, batch: int, epoch: int) -> list[Place]:
        """The files that the tasks of one start wrote in `batch`."""
        return in_order(self._directory(batch).glob(f"{epoch:08}.*.piece"))

    def spending(self, batch: int, partition: int) -> Place:
        """The file in which a task reports the time it spent on starting."""
        return self._directory(batch) / f"{self.epoch:08}.{partition:05}.spent"

    def spendings(self, batch: int, epoch: int) -> list[Place]:
        """The files that the tasks of one start reported for `batch`."""
        return in_order(self._directory(batch).glob(f"{epoch:08}.*.spent"))

    def publish_gate(
        self, batch: int, sides: BothSidesRows, facts: Mapping[str, Any], arrays: Mapping[str, Array] | None = None
    ) -> None:
        """Write the rows that wait in the gate after `batch`."""
        write_piece(self._gate(batch, self.epoch), sides, self._signed(batch, facts), arrays)

    def publish_merge(self, batch: int, sides: BothSidesRows, facts: Mapping[str, Any]) -> None:
        """Write the run that runs of version `batch` were merged into.

        It has a directory of its own: the version's directory may be removed meanwhile, on some file systems with all
        of its files.
        """
        path = self.root / "versions" / _MERGED / f"{batch:010}.{self.epoch:08}.merge"
        write_piece(path, sides, self._signed(batch, facts))

    def merges(self, before: Manifest, folded: Set[str]) -> list[str]:
        """The files of merges that apply to `before`: their inputs are adjacent runs of it and not in `folded`."""
        keys, files = [run.key for run in before.runs], before.files
        merge_files = []
        # Not the directory of the running batch: a host may cache its listing while files are still missing.
        listed = self._listed()
        names = (name for name in listed if name == _MERGED or _is_before(name, before.batch + 1))
        for path in [path for name in names for path in listed[name]]:
            file = f"{path.parent.name}/{path.name}"
            inputs = [] if file in files else self._inputs(path)
            if not inputs:
                continue
            begin = keys.index(inputs[0]) if inputs[0] in keys else 0
            if keys[begin : begin + len(inputs)] == inputs and not folded & set(inputs):
                merge_files.append(file)
                del keys[begin : begin + len(inputs)]
        return merge_files

    def gate(self, batch: int, epoch: int | None = None) -> tuple[dict[str, Any], MappedPiece]:
        """The footer and rows that `publish_gate` wrote, in this start or another one."""
        path = self._gate(batch, self.epoch if epoch is None else epoch)
        footer = read_footer(path)
        self._check(path, footer)
        return footer, MappedPiece(path)

    def _signed(self, batch: int, facts: Mapping[str, Any]) -> dict[str, Any]:
        marks = {"format": FORMAT, "fingerprint": self._blueprint.fingerprint}
        return {**facts, "batch": batch, "epoch": self.epoch, **marks}

    def _check(self, path: Place, footer: Mapping[str, Any]) -> None:
        if footer.get("format") != FORMAT or footer.get("fingerprint") not in self._blueprint.fingerprints:
            raise CheckpointError(
                f"the file {path} belongs to another join or was written by another version of streamjoin; start "
                "with a new checkpoint"
            )

    def piece(self, manifest: Manifest, file: str, shared: bool = True) -> MappedPiece:
        """A file of `manifest`, mapped; pieces of other versions are released. If not `shared`, the caller owns it."""
        if not shared:
            return MappedPiece(self.root / "versions" / file)
        mapped = _mapped.setdefault(str(self.root), {})
        if file not in mapped or not mapped[file].current():
            needed = manifest.files
            for old in [name for name in mapped if name not in needed]:
                del mapped[old]
            mapped[file] = MappedPiece(self.root / "versions" / file)
        return mapped[file]

    def write_late(self, batch: int, partition: int, rows: pa.Table) -> None:
        """Store rows that were not joined."""
        path = self.root / "late" / f"{batch:010}.{self.epoch:08}.{partition:05}.arrow"
        if path.exists():
            return
        with atomic(path, once=True) as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)
        most = int(os.environ.get("STREAMJOIN_LATE_BYTES") or LATE_BYTES)
        # Rows of the newest batches may not be in the late output yet.
        removed = remove_oldest(path.parent, most, lambda name: not _is_before(name.partition(".")[0], batch - 2))
        if removed:
            where = path.parent
            _logger.warning(
                "late rows in %s take over %d bytes: the oldest %d files were removed", where, most, removed
            )

    def late(self, batch: int) -> list[Place]:
        """The files of rows that the tasks of this start did not join in `batch`."""
        return in_order((self.root / "late").glob(f"{batch:010}.{self.epoch:08}.*.arrow"))

    def all_published(self, batch: int, ranges: int) -> bool:
        """Whether the tasks of this start have written the pieces of all `ranges`."""
        return len(self.pieces(batch, self.epoch)) == ranges

    def prune(self, manifest: Manifest) -> None:
        """Remove the files that `manifest`, the base of the current batch, does not need; later versions stay.

        The previous batch was committed before this one began, so no restart goes further back. The previous manifest
        stays: another task of the batch may be assembling this one from it. The driver prunes as well, at any time, so
        files may already be gone.
        """
        needed = manifest.files
        base = f"{manifest.batch - 1:010}"
        listed = self._listed()
        removed = [path for path in listed.get(f"{manifest.batch:010}", ()) if path.suffix == self.SPOOLED]
        older = [name for name in listed if _is_before(name, manifest.batch)]
        for name in [*older, _MERGED]:
            for path in listed.get(name, ()):
                if name == _MERGED and not _is_before(path.name.lstrip(".").partition(".")[0], manifest.batch):
                    continue
                keep = f"{name}/{path.name}" in needed or self._pending(path, manifest)
                if not keep and not (name == base and path.suffix == ".manifest"):
                    removed.append(path)
        self._listing = None
        remove_files(removed)
        if not (isinstance(self.root, RemotePath) and self.root.in_store):
            for name in older:
                with contextlib.suppress(OSError):
                    (self.root / "versions" / name).rmdir()

    def _listed(self) -> dict[str, list[Place]]:
        """The files of all versions by directory; in an object store, as they were at the first call of the batch."""
        listing = self._listing or tree(self.root / "versions")
        if isinstance(self.root, RemotePath) and self.root.in_store:
            self._listing = listing
        return listing

    @contextlib.contextmanager
    def advising(self, batch: int) -> Iterator[None]:
        """Add to an error of the log, raised while `batch` runs, from where the query can continue."""
        try:
            yield
        except CheckpointError as error:
            whole = max((v for v in self._versions() if v < batch and self.is_whole(v)), default=-1)
            again = ""
            if whole == batch - 2 and not self.holds(batch - 1):
                again = (
                    f"if a function for foreachBatch writes the result, restart the query: batch {batch - 1} runs "
                    "again, and the function gets it once more. With another sink, "
                )
            if whole == batch - 1:
                advice = f"the log of batch {whole} is complete: restart the query, it continues with batch {batch}"
            elif whole < 0:
                advice = (
                    f"no version of the log is complete: {again}restore a copy, or start with a new checkpoint from "
                    "batch 0"
                )
            else:
                advice = (
                    f"the newest complete version is that of batch {whole}: {again}to restart from batch {whole + 1}, "
                    f"remove the entries after {whole} from the checkpoint's offsets and commits, and what the sink "
                    "has of those batches"
                )
            raise CheckpointError(f"batch {batch} failed: {error}. {advice[0].upper()}{advice[1:]}") from error

    def _versions(self) -> list[int]:
        return [int(d.name) for d in entries(self.root / "versions") if d.name.isdigit()]

    def is_whole(self, batch: int) -> bool:
        """Whether everything that version `batch` needs can be read."""
        try:
            manifest = self.version(batch)
            pieces = {ref.file: ref for run in manifest.runs for ref in run.pieces}
            for file, ref in pieces.items():
                mapped = MappedPiece(self.root / "versions" / file)
                for block in (block for part in ref.blocks for block in part):
                    mapped.check(block)
            # Marks are in runs, but those of a gate of one task; a version with any gate has no counts.
            if self._blueprint.numbered and manifest.counts is None:
                footer, _ = self.gate(batch, manifest.epoch)
                if self._blueprint.marked and "came" not in footer:
                    self.marks(batch, manifest.epoch)
        except CheckpointError:
            return False
        return True

    def _pending(self, path: Place, manifest: Manifest) -> bool:
        """Whether a file is a merge that can still be swapped in, or one that this start is writing."""
        if path.name.startswith(".") and f".{self.epoch:08}.merge." in path.name:
            return True
        inputs = self._inputs(path)
        return bool(inputs) and {run.key for run in manifest.runs}.issuperset(inputs)

    def _inputs(self, path: Place) -> list[str]:
        """The runs that a merge replaces; empty if the file is not a merge or no longer exists."""
        if path.suffix != ".merge":
            return []
        try:
            inputs: list[str] = read_footer(path)["inputs"]
        except CheckpointError:
            if path.exists():
                raise
            return []
        return inputs

    def _directory(self, batch: int) -> Place:
        return self.root / "versions" / f"{batch:010}"

    def _gate(self, batch: int, epoch: int) -> Place:
        return self._directory(batch) / f"{epoch:08}.gate"

    def _manifest(self, batch: int, epoch: int) -> Place:
        return self._directory(batch) / f"{epoch:08}.manifest"

    def holds(self, batch: int) -> bool:
        """Whether all tasks of `batch` have stored their pieces, in this start or an earlier one."""
        return bool(self._finished(batch)[0])

    def _finished(self, batch: int) -> tuple[list[tuple[int, list[str]]], list[str]]:
        """The epochs that finished `batch`, with the names of their pieces, and the names of all files."""
        pieces: dict[tuple[int, int], list[str]] = {}
        listed = [path.name for path in entries(self._directory(batch))]
        for name in listed:
            if match := _PIECE.fullmatch(name):
                pieces.setdefault((int(match[1]), int(match[3])), []).append(name)
        return [(epoch, names) for (epoch, of), names in pieces.items() if len(names) == of], listed

    def _complete(self, batch: int) -> tuple[int, list[str]]:
        """The newest epoch that finished `batch`, and the names of its pieces and of its manifest, if there is one."""
        complete, listed = self._finished(batch)
        if not complete:
            raise CheckpointError(
                f"the window log in {self.root} does not hold batch {batch}, from which the query continues: a "
                "function for foreachBatch did not read all rows of that batch, so that not all of its tasks ran, or "
                "part of the checkpoint was removed, or it belongs to a query that ran without this join"
            )
        epoch, names = max(complete)
        manifest = self._manifest(batch, epoch).name
        return epoch, [*names, manifest] if manifest in listed else names

    def _assemble(self, batch: int, path: Place, names: list[str], keep: bool) -> Manifest:
        directory = self._directory(batch)
        pieces = [(f"{directory.name}/{name}", read_footer(directory / name)) for name in names]
        for file, footer in pieces:
            self._check(directory.parent / file, footer)
        base = self._base(batch, pieces[0][1]["base"])
        merges = [(file, read_footer(directory.parent / file)) for file in pieces[0][1]["swapped"]]
        for file, footer in merges:
            self._check(directory.parent / file, footer)
        manifest = assemble(base, pieces, self._blueprint.horizons, merges)
        if keep:
            with atomic(path, once=True) as file_:
                file_.write(manifest.to_json())
        if isinstance(path, RemotePath) and is_fixed(path):
            keep_note(path, manifest.to_json())
        return manifest

    def _base(self, batch: int, epoch: int) -> Manifest:
        if batch == 0:
            return EMPTY
        return _read_manifest(self._manifest(batch - 1, epoch))


def _is_before(number: str, batch: int) -> bool:
    return number.isdigit() and int(number) < batch


def _parsed_before(path: Path) -> Manifest | None:
    """The manifest in a local file, if this process has parsed it."""
    with contextlib.suppress(OSError):
        return _parsed.get((str(path), identity(path)))
    return None


def _read_manifest(path: Place) -> Manifest:
    """The manifest in a file, which is parsed once a process."""
    try:
        fixed = path if isinstance(path, RemotePath) and is_fixed(path) else None
        key = str(path), identity(path) if fixed is None else None
        known = _parsed.pop(key, None)
        if known is None:
            known = Manifest.from_json(path.read_bytes() if fixed is None else mapped_fixed(fixed).to_pybytes())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(path, error) from error
    # The last is the newest, also while threads of the driver read others.
    _parsed[key] = known
    for old in list(_parsed)[:-_MOST_PARSED]:
        _parsed.pop(old, None)
    return known


def new_epoch(
    root: Place, description: dict[str, str], run: str | None = None, former: dict[str, str] | None = None
) -> int:
    """Register a start of a query on the log in `root`; creates the log, or rejects that of another join.

    With the id of a `run`, all tasks of the start may register it and get the same number. A log with the `former`
    description gets the new one: earlier versions then refuse it.
    """
    if check_description(root, description, former) != description:
        with atomic(root / _DESCRIPTION) as file:
            file.write(json.dumps(description, indent=2).encode())
    try:
        return claim(root) if run is None else claim_for_run(root, run)
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(
            f"{root}/epochs can't be written: {reason}. Make it writable and restart the query"
        ) from error


def has_log(root: Place) -> bool:
    """Whether a join has a log in `root`."""
    # libhdfs prints a stack trace for every missing file that is opened.
    return (root / _DESCRIPTION).exists()


def check_description(
    root: Place, description: dict[str, str], former: dict[str, str] | None = None
) -> dict[str, str] | None:
    """Reject the log of another join in `root`; returns the description of the log, or None if there is none.

    Raises:
        CheckpointError: it is the log of another join, or its description can't be read.
    """
    path = root / _DESCRIPTION
    if not has_log(root):
        return None
    try:
        saved_description: dict[str, str] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error
    if saved_description not in (description, former):
        raise CheckpointError(_difference(root, saved_description, description))
    return saved_description


def first_epoch(root: Place) -> int:
    """The first start of a query on the log in `root`: it differs for every log that was ever there."""
    return min(claims(root), default=0)


def _difference(root: Place, known: Any, now: dict[str, str]) -> str:
    if not isinstance(known, dict):
        return f"{root / _DESCRIPTION} does not describe a join; start with a new checkpoint"
    if known.get("format") != now["format"]:
        return (
            f"the checkpoint has format {known.get('format', 'unknown')} of the window log ({root}), and streamjoin "
            f"{__version__} reads format {now['format']}. Nothing was changed: run the version that wrote it, or start "
            "with a new checkpoint"
        )
    sources = ("left sources", "right sources")
    gates = [any(description.get(key, ANY_ORDER) != ANY_ORDER for key in sources) for description in (known, now)]
    changed = []
    if gates[0] != gates[1]:
        options = "ordered=True, positions=True, idle=, several sources on a side, or by= or position= of a source"
        changed = [
            f"a gate came before the join and none does now: it had one of {options}"
            if gates[0]
            else f"no gate came before the join and one does now: leave out {options}"
        ]
        known, now = ({key: d[key] for key in d if key not in sources} for d in (known, now))
    changed += [
        f"{key} was {known.get(key, 'not there')!r} and is now {now.get(key, 'not there')!r}"
        for key in sorted({*known, *now})
        if known.get(key) != now.get(key)
    ]
    return (
        f"the checkpoint holds the state of another join ({root}): {'; '.join(changed)}. Use the join it was "
        "created with, or start with a new checkpoint"
    )


def late_files(root: Place) -> list[tuple[int, Place]]:
    """(batch, file) of the rows that were not joined, in the order of batches, from each batch's newest run."""
    newest_files: dict[int, tuple[int, list[Place]]] = {}
    for path in entries(root / "late"):
        if match := _LATE.fullmatch(path.name):
            batch, epoch = int(match[1]), int(match[2])
            newest, files = newest_files.get(batch, (epoch, []))
            newest_files[batch] = (epoch, [path]) if epoch > newest else (newest, [*files, path])
    return [(batch, path) for batch, (_, files) in sorted(newest_files.items()) for path in files]
