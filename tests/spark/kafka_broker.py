"""A real Kafka broker for the tests: one node in KRaft mode, started from the jars of a Maven repository.

`python -m tests.spark.kafka_broker` fetches the jars; a broker fetches them itself where that was not done. There is no
way round a missing broker: what can't be fetched or started is an error, and the tests fail.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from streamjoin._cache import cache_dir
from streamjoin.spark.runtime import jars
from streamjoin.spark.runtime.java import find_java

KAFKA = jars.Module("org.apache.kafka", "kafka_2.13", "4.3.1")
PATIENCE = 60.0
# Small and quick to start: the tests send some thousand records.
_JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dslf4j.internal.verbosity=ERROR")


def broker_jars() -> Path:
    """The directory of the broker's jars, fetched when it is not there."""
    place = cache_dir() / f"{KAFKA.name}-{KAFKA.version}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        try:
            jars.retrieve([KAFKA], draft / "jars", ivy_home=place.parent / "ivy", transitive=True)
            if not place.is_dir():
                (draft / "jars").rename(place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return place


class Broker:
    """One broker that can be killed and started again over the same log."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        port, controller = _free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self._properties = directory / "server.properties"
        self._properties.write_text(_settings(directory / "log", port, controller))
        # One in 64 begins with a dash, which as an argument of its own would be read as an option.
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        ran = subprocess.run(
            [*self._java("kafka.tools.StorageTool"), "format", f"--cluster-id={cluster}", "-c", str(self._properties)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self._directory / "output").open("ab") as output:
            command = [*self._java("kafka.Kafka"), str(self._properties)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0, "logger": _Silent()})  # type: ignore[dict-item]
        for _ in range(int(PATIENCE * 2)):
            try:
                # Asked with a deadline: this waits, it does not spin.
                admin.list_topics(timeout=0.5)
                return
            except KafkaException:
                assert self._process.poll() is None, (self._directory / "output").read_text()[-4000:]
        raise AssertionError("the broker does not answer")

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def create(self, *topics: str, partitions: int = 2) -> None:
        """Make topics."""
        admin = AdminClient({"bootstrap.servers": self.address})
        made = admin.create_topics(
            [NewTopic(topic, num_partitions=partitions, replication_factor=1) for topic in topics]
        )
        for future in made.values():
            future.result(timeout=PATIENCE)

    def send(self, topic: str, values: Iterable[bytes | str | None]) -> None:
        """Send records over the topic's partitions in turn; they are stored when this returns."""
        refused: list[Any] = []
        producer = Producer({"bootstrap.servers": self.address, "acks": "all", "enable.idempotence": True})
        partitions = len(producer.list_topics(topic, timeout=PATIENCE).topics[topic].partitions)
        for number, value in enumerate(values):
            producer.produce(
                topic,
                value,
                partition=number % partitions,
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )
        assert producer.flush(PATIENCE) == 0
        assert not refused, refused

    def received(self, topic: str) -> list[Any]:
        """The value of every record of a topic as it is now, from JSON."""
        return [json.loads(message.value()) for message in self._messages(topic)]

    def headers(self, topic: str) -> list[dict[str, bytes]]:
        """The headers of every record of a topic as it is now."""
        return [dict(message.headers()) for message in self._messages(topic)]

    def _messages(self, topic: str) -> list[Any]:
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": str(uuid.uuid4())})
        try:
            found = consumer.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
            ends = {n: consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=PATIENCE)[1] for n in found}
            consumer.assign([TopicPartition(topic, number, 0) for number in ends])
            messages: list[Any] = []
            while any(position.offset < ends[position.partition] for position in _positions(consumer, topic, ends)):
                for message in consumer.consume(1000, timeout=1):
                    assert message.error() is None, message.error()
                    messages.append(message)
            return messages
        finally:
            consumer.close()

    def _java(self, program: str) -> list[str]:
        return [str(find_java().home / "bin" / "java"), *_JVM, "-cp", f"{broker_jars()}/*", program]


class _Silent:
    """A logger for a client that is expected to find nobody there at first."""

    def log(self, *_: object) -> None:
        pass


def _positions(consumer: Consumer, topic: str, ends: Mapping[int, int]) -> Sequence[TopicPartition]:
    """Where the consumer stands; before its first record of a partition that is the beginning."""
    found: Sequence[TopicPartition] = consumer.position([TopicPartition(topic, number) for number in ends])
    for position in found:
        position.offset = max(position.offset, 0)
    return found


def _settings(log: Path, port: int, controller: int) -> str:
    return "\n".join(
        (
            "process.roles=broker,controller",
            "node.id=1",
            f"controller.quorum.voters=1@127.0.0.1:{controller}",
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            f"log.dirs={log}",
            "offsets.topic.replication.factor=1",
            "offsets.topic.num.partitions=1",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            "group.initial.rebalance.delay.ms=0",
            "auto.create.topics.enable=false",
            "log.cleaner.enable=false",
        )
    )


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has, below those that the system gives to connections: the broker takes them seconds later."""
    sockets: list[socket.socket] = []
    while len(sockets) < count:
        with contextlib.suppress(OSError):
            sockets.append(socket.create_server(("127.0.0.1", random.randrange(20_000, 32_000))))
    try:
        return [listening.getsockname()[1] for listening in sockets]
    finally:
        for listening in sockets:
            listening.close()


if __name__ == "__main__":
    jars.fetch()
    broker_jars()
