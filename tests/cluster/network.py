"""A network of hosts on one machine: network namespaces, and a switch between them that delays, loses and cuts.

Each host is a namespace with one TAP interface. The switch is a thread that reads the frames of all interfaces and
passes each on to the interface of its destination, late or not at all. Kernels without the queueing discipline `netem`
can do without it, and the same packets of TCP are lost that a bad network would lose. Needs root and `/dev/net/tun`.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import random
import selectors
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_TUNSETIFF, _TAP, _NO_HEADER = 0x400454CA, 0x0002, 0x1000
_BROADCAST = b"\xff" * 6
MTU = 9000
"""As in many clusters."""


class NamespacesUnavailableError(Exception):
    """This machine does not let us make a network; the message is what was tried and what it said."""


@dataclass(frozen=True)
class Host:
    """A host of the network."""

    name: str
    namespace: str
    address: str

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs a program on this host."""
        return ["ip", "netns", "exec", self.namespace, *arguments]


class Switch:
    """Passes frames on between interfaces; a thread of this process.

    `delay` is in seconds and one way, `loss` is the share of frames that get lost. A pair of hosts that is cut has
    no frames passed on in either direction.
    """

    def __init__(self, interfaces: dict[str, int]) -> None:
        self.delay = 0.0
        self.loss = 0.0
        self.passed = self.lost = 0
        self._interfaces = interfaces
        self._names = {file: name for name, file in interfaces.items()}
        self._places: dict[bytes, str] = {}
        self._cut: frozenset[frozenset[str]] = frozenset()
        self._rng = random.Random(0)
        self._stopped, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._run, name="switch", daemon=True)
        self._thread.start()

    def cut(self, host: str, others: Sequence[str] | None = None) -> None:
        """Separate a host from others, by default from all."""
        others = others or [name for name in self._interfaces if name != host]
        self._cut |= {frozenset((host, other)) for other in others}

    def heal(self) -> None:
        """Connect all hosts again."""
        self._cut = frozenset()

    def stop(self) -> None:
        """End the thread."""
        os.write(self._stop, b"x")
        self._thread.join()
        os.close(self._stop)
        os.close(self._stopped)

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        for file in (*self._interfaces.values(), self._stopped):
            selector.register(file, selectors.EVENT_READ)
        waiting: list[tuple[float, int, int, bytes]] = []
        numbers = itertools.count()
        while True:
            timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            for key, _ in selector.select(timeout):
                if key.fd == self._stopped:
                    selector.close()
                    return
                for frame in _frames(key.fd):
                    due = time.monotonic() + self.delay
                    for target in self._targets(self._names[key.fd], frame):
                        heapq.heappush(waiting, (due, next(numbers), target, frame))
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, _, target, frame = heapq.heappop(waiting)
                # A full queue drops the frame, as that of a switch does.
                with contextlib.suppress(BlockingIOError):
                    os.write(target, frame)
                self.passed += 1

    def _targets(self, source: str, frame: bytes) -> list[int]:
        destination, sender = frame[:6], frame[6:12]
        self._places[sender] = source
        known = self._places.get(destination)
        names = [known] if known is not None and destination != _BROADCAST else list(self._interfaces)
        targets = [name for name in names if name != source and frozenset((source, name)) not in self._cut]
        if self.loss and self._rng.random() < self.loss:
            self.lost += 1
            return []
        return [self._interfaces[name] for name in targets]


def _frames(file: int) -> Iterator[bytes]:
    """The frames that an interface has sent; a few at a time, so that no host keeps the others waiting."""
    for _ in range(64):
        try:
            yield os.read(file, 1 << 16)
        except BlockingIOError:
            return


class Network:
    """Hosts with addresses 10.77.0.1, 10.77.0.2, ..., connected by a switch; closes itself."""

    def __init__(self, *names: str) -> None:
        self._prefix = f"sj{os.getpid()}"
        self.hosts: dict[str, Host] = {}
        self._files: dict[str, int] = {}
        try:
            for number, name in enumerate(names, 1):
                self.hosts[name] = Host(name, f"{self._prefix}-{name}", f"10.77.0.{number}")
                self._make(self.hosts[name], f"{self._prefix}t{number}")
        except BaseException:
            self._remove()
            raise
        self.switch = Switch(self._files)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.switch.stop()
        self._remove()

    def processes(self, host: str) -> list[int]:
        """The processes of a host."""
        listed = _run("ip", "netns", "pids", self.hosts[host].namespace)
        return [int(pid) for pid in listed.split()]

    def _make(self, host: Host, interface: str) -> None:
        _run("ip", "netns", "add", host.namespace)
        try:
            file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise NamespacesUnavailableError(f"/dev/net/tun can't be opened: {error.strerror}") from error
        self._files[host.name] = file
        try:
            fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", interface.encode(), _TAP | _NO_HEADER))
        except OSError as error:
            raise NamespacesUnavailableError(f"no TAP interface can be made: {error.strerror}") from error
        # The file stays connected to an interface that moves to another namespace.
        _run("ip", "link", "set", interface, "netns", host.namespace)
        inside = ("ip", "-n", host.namespace)
        _run(*inside, "addr", "add", f"{host.address}/24", "dev", interface)
        _run(*inside, "link", "set", interface, "mtu", str(MTU), "up")
        _run(*inside, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for host in self.hosts.values():
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True, check=False)
        for file in self._files.values():
            os.close(file)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise NamespacesUnavailableError(f"{command[0]} is not installed (Debian: iproute2)") from error
    except subprocess.CalledProcessError as error:
        raise NamespacesUnavailableError(f"{' '.join(command)}: {error.stderr.strip() or error}") from error
    return done.stdout
