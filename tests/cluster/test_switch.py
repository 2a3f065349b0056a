"""The switch of `make cluster`, over sockets in place of interfaces: who gets a frame, when, and who does not."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from tests.cluster.archive import needed_files
from tests.cluster.network import Switch

BROADCAST = b"\xff" * 6
PATIENCE = 30.0


class Wired:
    """Three hosts at a switch."""

    def __init__(self) -> None:
        pairs = {name: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for name in "abc"}
        self._pairs = pairs
        for _, far in pairs.values():
            far.setblocking(False)
        for near, _ in pairs.values():
            near.settimeout(PATIENCE)
        self.switch = Switch({name: far.fileno() for name, (_, far) in pairs.items()})
        for name in "abc":
            self.send(name, BROADCAST, b"hello")
        for name in "abc":
            assert {self.received(name)[6:12] for _ in range(2)} == {
                _address(other) for other in "abc" if other != name
            }

    def send(self, source: str, target: bytes | str, text: bytes) -> None:
        address = _address(target) if isinstance(target, str) else target
        self._pairs[source][0].send(address + _address(source) + text)

    def received(self, name: str) -> bytes:
        return self._pairs[name][0].recv(1 << 16)

    def close(self) -> None:
        self.switch.stop()
        for pair in self._pairs.values():
            for end in pair:
                end.close()


def _address(name: str) -> bytes:
    return b"\x02" + name.encode() * 5


@pytest.fixture
def wired() -> Iterator[Wired]:
    network = Wired()
    yield network
    network.close()


def test_frames_go_to_their_host_alone(wired: Wired) -> None:
    wired.send("a", "b", b"1")
    wired.send("c", "b", b"2")
    wired.send("b", "a", b"3")
    assert {wired.received("b")[12:], wired.received("b")[12:]} == {b"1", b"2"}
    assert wired.received("a")[12:] == b"3"
    # Had "c" got one of them, it would be before this one.
    wired.send("a", "c", b"4")
    assert wired.received("c")[12:] == b"4"


def test_a_host_that_is_cut_off_gets_nothing_until_it_is_healed(wired: Wired) -> None:
    wired.switch.cut("a", ["b"])
    wired.send("a", "b", b"lost")
    wired.send("b", "a", b"lost")
    wired.send("a", "c", b"to c")
    assert wired.received("c")[12:] == b"to c"
    wired.switch.heal()
    wired.send("a", "b", b"again")
    assert wired.received("b")[12:] == b"again"
    wired.switch.cut("c")
    wired.send("a", BROADCAST, b"all")
    assert wired.received("b")[12:] == b"all"
    wired.switch.heal()
    wired.send("a", "c", b"after")
    assert wired.received("c")[12:] == b"after"


def test_frames_are_delayed_in_order_and_some_get_lost(wired: Wired) -> None:
    wired.switch.delay = 0.05
    began = time.monotonic()
    for number in range(20):
        wired.send("a", "b", b"%d" % number)
    assert [int(wired.received("b")[12:]) for _ in range(20)] == list(range(20))
    assert time.monotonic() - began >= 0.05
    wired.switch.delay, wired.switch.loss = 0.0, 0.2
    for number in range(150):
        wired.send("a", "b", b"%d" % number)
    # One of these comes through.
    for _ in range(20):
        wired.send("a", "b", b"-1")
    numbers = []
    while (number := int(wired.received("b")[12:])) >= 0:
        numbers.append(number)
    assert numbers == sorted(numbers)
    assert 80 < len(numbers) < 150


def test_the_archive_has_what_executors_import() -> None:
    needed = needed_files("streamjoin", ("s3",))
    assert needed >= {"streamjoin", "numpy", "numba", "llvmlite", "pyarrow", "boto3", "botocore"}
    assert not needed & {"pyspark", "pytest", "fastapi"}
