"""Reads what Java class files define and refer to: enough to tell whether jars link against others.

Java links a reference when the code that holds it first runs; a method that is gone shows on that day. Read from the
constant pools, every reference is seen at once.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Member = tuple[str, str]
# Every class has them, and java.lang.Object is not among the jars.
_OF_EVERY_OBJECT = {"getClass", "hashCode", "equals", "toString", "notify", "notifyAll", "wait", "clone", "finalize"}
# Constant pool entries of a fixed length, by tag; 5 and 6 take two places.
_LENGTHS = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}


@dataclass(frozen=True)
class ClassFile:
    """A class: its name, what it extends, its members, and the classes and members it refers to."""

    name: str
    parents: tuple[str, ...]
    members: frozenset[Member]
    references: frozenset[tuple[str, Member | None]]


def read_jars(paths: Iterable[Path], prefix: str) -> dict[str, ClassFile]:
    """The classes below `prefix` in some jars."""
    found: dict[str, ClassFile] = {}
    for path in paths:
        with zipfile.ZipFile(path) as jar:
            for name in jar.namelist():
                if name.startswith(prefix) and name.endswith(".class"):
                    parsed = parse(jar.read(name))
                    found.setdefault(parsed.name, parsed)
    return found


def unresolved(of: dict[str, ClassFile], against: dict[str, ClassFile], prefix: str) -> Iterator[tuple[str, str]]:
    """References into `prefix` that nothing answers, as (class that refers, what it refers to)."""
    world = {**against, **of}
    for holder in of.values():
        for owner, member in sorted(holder.references, key=str):
            if not owner.startswith(prefix):
                continue
            if owner not in world:
                yield holder.name, owner
            elif member is not None and not _has(world, owner, member):
                yield holder.name, f"{owner}.{member[0]}{member[1]}"


def _has(world: dict[str, ClassFile], owner: str, member: Member) -> bool:
    if member[0] in _OF_EVERY_OBJECT:
        return True
    found = world.get(owner)
    if found is None:
        # A class of Java's or Scala's own: those come with Spark, in the version it was built with.
        return owner != "java/lang/Object"
    return member in found.members or any(_has(world, parent, member) for parent in found.parents)


def parse(data: bytes) -> ClassFile:
    """One class file."""
    pool, at = _pool(data)

    def text(index: int) -> str:
        return str(pool[index][1])

    def class_name(index: int) -> str:
        return text(pool[index][1])

    _, this, parent, count = struct.unpack_from(">HHHH", data, at)
    interfaces = struct.unpack_from(f">{count}H", data, at + 8)
    at += 8 + 2 * count
    members = set()
    for _ in ("fields", "methods"):
        (count,) = struct.unpack_from(">H", data, at)
        at += 2
        for _ in range(count):
            _, name, descriptor, attributes = struct.unpack_from(">HHHH", data, at)
            members.add((text(name), text(descriptor)))
            at += 8
            for _ in range(attributes):
                at += 6 + struct.unpack_from(">I", data, at + 2)[0]
    references: set[tuple[str, Member | None]] = set()
    for entry in pool:
        if entry and entry[0] == 7:
            references.add((_element(text(entry[1])), None))
        elif entry and entry[0] in (9, 10, 11):
            kind = pool[entry[2]]
            references.add((_element(class_name(entry[1])), (text(kind[1]), text(kind[2]))))
    parents = tuple(class_name(index) for index in (parent, *interfaces) if index)
    return ClassFile(class_name(this), parents, frozenset(members), frozenset(references))


def _pool(data: bytes) -> tuple[list[Any], int]:
    """The constant pool and where it ends."""
    (count,) = struct.unpack_from(">H", data, 8)
    pool: list[Any] = [None] * count
    at, index = 10, 1
    while index < count:
        tag = data[at]
        if tag == 1:
            (length,) = struct.unpack_from(">H", data, at + 1)
            pool[index] = (1, data[at + 3 : at + 3 + length].decode("utf-8", "replace"))
            at += 3 + length
        else:
            size = _LENGTHS[tag]
            if size in (2, 4) and tag not in (3, 4):
                pool[index] = (tag, *struct.unpack_from(">H" if size == 2 else ">HH", data, at + 1))
            at += 1 + size
        index += 2 if tag in (5, 6) else 1
    return pool, at


def _element(name: str) -> str:
    """The class of an array's elements, or the class itself."""
    return name.lstrip("[").removeprefix("L").removesuffix(";") if name.startswith("[") else name
