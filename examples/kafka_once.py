"""Read the rows of ad-hoc queries from a Kafka topic, each row once.

After a crash an engine sends the rows of its newest batch again. The headers of a record name its query, its batch and
its position in the batch, so a reader can drop what it has seen. It has to remember the positions of a query's newest
batches alone: older ones do not come again. Run it with `python examples/kafka_once.py BROKER TOPIC` (and
`pip install confluent-kafka`); it ends where the topic ends now.
"""

import sys
from collections import defaultdict

from confluent_kafka import Consumer, Message, TopicPartition

_BATCHES = 1_000


class Seen:
    """The positions of the newest batches of each query."""

    def __init__(self) -> None:
        self._positions: dict[bytes, dict[int, set[bytes]]] = defaultdict(dict)

    def is_new(self, message: Message) -> bool:
        """Whether the record comes for the first time."""
        headers = dict(message.headers())
        batch, position = int(headers["streamjoin-batch"]), headers["streamjoin-position"]
        batches = self._positions[headers["streamjoin-query"]]
        positions = batches.setdefault(batch, set())
        if position in positions:
            return False
        positions.add(position)
        if len(batches) > _BATCHES:
            del batches[min(batches)]
        return True


def main() -> None:
    broker, topic = sys.argv[1:]
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "once", "enable.auto.commit": False})
    seen = Seen()
    for number in consumer.list_topics(topic).topics[topic].partitions:
        place = TopicPartition(topic, number, 0)
        end = consumer.get_watermark_offsets(place)[1]
        consumer.assign([place])
        offset = 0
        while offset < end:
            for message in consumer.consume(num_messages=500, timeout=1):
                offset = message.offset() + 1
                if seen.is_new(message):
                    print(message.value().decode())
    consumer.close()


if __name__ == "__main__":
    main()
