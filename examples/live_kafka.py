"""Sensors from Kafka to Kafka at milliseconds, without Spark: two topics joined by a live join, alarms sent to a third.

Each partition of a topic is a source in event-time order, so the matches and their order are the same for every run
over the same records. The windows live in memory: after a restart the join begins with empty ones, so use `streamjoin
run` where every match counts. Run it with `python examples/live_kafka.py BROKER` (and `pip install confluent-kafka`);
Ctrl-C ends it. With `--until-end` it stops where the topics end now.
"""

import argparse
import json
import threading

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

import streamjoin as sj

spec = sj.JoinSpec(
    on="l.machine = r.machine AND l.celsius > 80 AND r.speed > 4",  # hot and shaking, at one machine
    window=sj.TimeWindow("5 seconds"),
    time="ts",
    order="event_time",
)
HEAT = pa.schema([("ts", pa.timestamp("ms")), ("machine", pa.string()), ("celsius", pa.float64())])
VIBRATION = pa.schema([("ts", pa.timestamp("ms")), ("machine", pa.string()), ("speed", pa.float64())])


def read(source: "sj.LiveSource", broker: str, place: TopicPartition, schema: pa.Schema, end: int | None) -> None:
    """Push the records of one partition, from its beginning."""
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "live", "enable.auto.commit": False})
    consumer.assign([TopicPartition(place.topic, place.partition, 0)])
    offset = 0
    while not STOPPING.is_set() and (end is None or offset < end):
        # As many records as there are: few when it is quiet, hundreds when it is busy.
        messages = [m for m in consumer.consume(num_messages=500, timeout=0.05) if m.error() is None]
        rows = [json.loads(message.value()) for message in messages]
        if rows:
            offset = messages[-1].offset() + 1
            columns = {name: [row[name] for row in rows] for name in schema.names}
            source.push(pa.record_batch(columns, schema=schema))
    source.finish()
    consumer.close()


def send(producer: Producer, topic: str, rows: pa.RecordBatch) -> None:
    """Send matches, with the machine as key."""
    for row in rows.to_pylist():
        while True:
            try:
                producer.produce(topic, json.dumps(row, default=str).encode(), key=row["machine"])
                break
            except BufferError:
                # The broker is slow: the join, and then the topics' readers, wait.
                producer.poll(0.1)
    producer.poll(0)


STOPPING = threading.Event()

if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("broker")
    arguments.add_argument("--until-end", action="store_true", help="stop where the topics end now")
    arguments.add_argument("--idle", default="2 seconds", help="how long a silent partition holds back the others")
    options = arguments.parse_args()

    looker = Consumer({"bootstrap.servers": options.broker, "group.id": "live"})
    producer = Producer({"bootstrap.servers": options.broker, "linger.ms": 1})
    with sj.live(spec, left_schema=HEAT, right_schema=VIBRATION, idle=options.idle) as join:
        threads = []
        for side, topic, schema in (("left", "heat", HEAT), ("right", "vibration", VIBRATION)):
            for number in looker.list_topics(topic, timeout=10).topics[topic].partitions:
                place = TopicPartition(topic, number)
                end = looker.get_watermark_offsets(place, timeout=10)[1] if options.until_end else None
                source = join.source(side, f"{topic}-{number:05}")
                threads.append(threading.Thread(target=read, args=(source, options.broker, place, schema, end)))
        looker.close()
        for thread in threads:
            thread.start()

        def close() -> None:
            for thread in threads:
                thread.join()
            join.close()

        threading.Thread(target=close).start()
        count = 0
        try:
            for rows in join:
                send(producer, "alarms", rows)
                count += rows.num_rows
        finally:
            STOPPING.set()
            producer.flush()
        print(f"{count:,} alarms, {join.late().num_rows} late records")
