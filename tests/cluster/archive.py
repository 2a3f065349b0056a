"""The archive that brings streamjoin and what it needs to executors that have neither (`spark.archives`)."""

from __future__ import annotations

import importlib.metadata
import re
import zipfile
from pathlib import Path

import streamjoin

_LEFT_OUT = re.compile(r"(^|/)(tests|__pycache__|include)/|\.(pyi|pyx|pxd|a|h|cuh)$|^\.\./")


def write_archive(path: Path, extras: tuple[str, ...] = ("s3",)) -> int:
    """Write streamjoin and the distributions it depends on, as installed here; returns how many bytes that are."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in sorted(needed_files("streamjoin", extras) - {"streamjoin"}):
            for file in importlib.metadata.distribution(name).files or ():
                if not _LEFT_OUT.search(str(file)) and Path(str(file.locate())).is_file():
                    archive.write(str(file.locate()), str(file))
        package = Path(streamjoin.__file__).parent
        for source in sorted(package.rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                archive.write(source, source.relative_to(package.parent))
    return path.stat().st_size


def needed_files(name: str, extras: tuple[str, ...]) -> set[str]:
    """The names of a distribution and all that it requires."""
    needed, open_names = set(), [(name, extras)]
    while open_names:
        current, wanted = open_names.pop()
        if current in needed:
            continue
        needed.add(current)
        for requirement in importlib.metadata.requires(current) or ():
            text, _, marker = requirement.partition(";")
            extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
            skipped = extra is not None and extra[1] not in wanted
            match = re.match(r"[A-Za-z0-9._-]+", text)
            if skipped or match is None or not _is_installed(match[0]):
                continue
            open_names.append((match[0].lower(), ()))
    return needed


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
