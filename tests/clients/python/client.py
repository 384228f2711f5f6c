#!/usr/bin/env python3
"""The test client on librdkafka's Python binding (confluent-kafka). Exit code 0 only when everything was as expected.

client.py tour BOOTSTRAP                 create, produce idempotently with every codec, consume, look up by time, delete
client.py delete BOOTSTRAP TOPIC         deletes a topic
client.py put BOOTSTRAP TOPIC FILE N     FILE's paragraphs as records, round-robin over N partitions
client.py get BOOTSTRAP TOPIC FILE N     the opposite of put
client.py load BOOTSTRAP TOPIC N RECEIPT numbered records until SIGTERM; a line per acknowledgement in RECEIPT
client.py verify BOOTSTRAP TOPIC N RECEIPT   every acknowledged record is there once, in order, at its offset
client.py keys BOOTSTRAP TOPIC N         prints how many records there are and how many different keys, one partition after another
"""
import functools
import os
import signal
import sys
import threading
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LIMIT = 60  # seconds that any one answer may take


def check(condition, text):
    if not condition:
        sys.exit(f"FAILED: {text}")


@functools.cache
def admin(bootstrap):
    # One for the whole run: a client that is collected takes its pending answers with it.
    return AdminClient({"bootstrap.servers": bootstrap})


def create(bootstrap, topic, partitions, config=None):
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config or {})
    admin(bootstrap).create_topics([wanted], operation_timeout=30)[topic].result(LIMIT)


def delete(bootstrap, topic):
    admin(bootstrap).delete_topics([topic], operation_timeout=30)[topic].result(LIMIT)


def producer(bootstrap, **settings):
    return Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **settings})


def consumer(bootstrap, **settings):
    # A group id is asked for by the library; assignment by hand never joins or commits.
    return Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False,
                     "auto.offset.reset": "error", "enable.partition.eof": False, "check.crcs": True, **settings})


def ends(reader, topic, partition):
    return reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=LIMIT)


def read(bootstrap, topic, partitions, **settings):
    """Every record from the start to the ends of now, partition after partition, as messages."""
    reader = consumer(bootstrap, **settings)
    try:
        for partition in range(partitions):
            low, high = ends(reader, topic, partition)
            if low == high:
                continue
            reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
            position, heard = low, time.monotonic()
            while position < high:
                messages = reader.consume(1000, timeout=0.05)
                for message in messages:
                    if message.error():
                        raise KafkaException(message.error())
                    position = message.offset() + 1
                    yield message
                if messages:
                    heard = time.monotonic()
                else:
                    # Compaction and control records may leave the end without a record.
                    position = max(position, reader.position([TopicPartition(topic, partition)])[0].offset)
                    check(time.monotonic() - heard < LIMIT, f"{topic}-{partition}: nothing after {position} of {high}")
    finally:
        reader.close()


def tour(bootstrap):
    topic = f"python-tour-{os.getpid()}"
    create(bootstrap, topic, 2, {"retention.ms": "-1"})
    listed = admin(bootstrap).list_topics(topic, timeout=LIMIT).topics[topic]
    check(len(listed.partitions) == 2, f"2 partitions, not {len(listed.partitions)}")

    # Twenty records with every codec, a minute apart, on both partitions; empty, null and binary fields among them.
    base, expected = 1_750_000_000_000, {0: [], 1: []}
    moment = 0
    for codec in CODECS:
        failures = []
        sender = producer(bootstrap, **{"compression.type": codec, "linger.ms": 20})
        for i in range(20):
            key = None if i % 5 == 0 else f"{codec}-{i}".encode()
            value = (None, b"", bytes(range(256)) * 8, f"{codec} value {i} ".encode() * 50)[i % 4]
            headers = [("codec", codec.encode()), ("codec", b"again"), ("none", None)] if i % 2 else []
            stamp = base + 60_000 * moment
            sender.produce(topic, value, key, i % 2, timestamp=stamp, headers=headers,
                           on_delivery=lambda error, _: failures.append(error) if error else None)
            expected[i % 2].append((key, value, stamp, headers))
            moment += 1
        check(sender.flush(LIMIT) == 0 and not failures, f"{codec}: {failures or 'not flushed'}")

    got = {0: [], 1: []}
    for m in read(bootstrap, topic, 2):
        check(m.offset() == len(got[m.partition()]), f"offset {m.offset()} after {len(got[m.partition()])} records")
        got[m.partition()].append((m.key(), m.value(), m.timestamp()[1], m.headers() or []))
    check(got == expected, "the records that were read are not those that were written")

    # By time: the first record at or after it, on each partition; past the last one the end.
    reader = consumer(bootstrap)
    for partition, records in expected.items():
        for index in (0, 1, 17, 33, len(records) - 1):
            for stamp in (records[index][2], records[index][2] - 1):
                found = reader.offsets_for_times([TopicPartition(topic, partition, stamp)], timeout=LIMIT)[0]
                check(found.error is None and found.offset == index, f"at {stamp}: {found} and not {index}")
        past = reader.offsets_for_times([TopicPartition(topic, partition, records[-1][2] + 1)], timeout=LIMIT)[0]
        check(past.offset in (-1, len(records)), f"past the end: {past.offset}")
    spec = {TopicPartition(topic, 0): OffsetSpec.max_timestamp()}
    newest = list(admin(bootstrap).list_offsets(spec).values())[0].result(LIMIT)
    check(newest.offset == len(expected[0]) - 1, f"max timestamp at {newest.offset}")

    # From the middle, and past the end.
    reader.assign([TopicPartition(topic, 0, 10)])
    first = reader.poll(LIMIT)
    check(first is not None and not first.error() and first.offset() == 10, "reading from offset 10")
    reader.close()

    # Deletes records, adds a partition, deletes the topic.
    cut = admin(bootstrap).delete_records([TopicPartition(topic, 0, 25)])
    low = list(cut.values())[0].result(LIMIT).low_watermark
    check(low == 25, f"low watermark {low} after deleting up to 25")
    reader = consumer(bootstrap)
    check(ends(reader, topic, 0) == (25, 50), f"ends {ends(reader, topic, 0)} after deleting up to 25")
    left = [m.offset() for m in read(bootstrap, topic, 1)]
    check(left == list(range(25, 50)), f"after deleting up to 25: {left}")
    reader.close()
    admin(bootstrap).create_partitions([NewPartitions(topic, 3)])[topic].result(LIMIT)
    delete(bootstrap, topic)
    deadline = time.monotonic() + LIMIT
    while topic in admin(bootstrap).list_topics(timeout=LIMIT).topics:
        check(time.monotonic() < deadline, "the deleted topic is still listed")
        time.sleep(0.05)


def paragraphs(path):
    """Runs of lines with the empty lines that follow them, as bytes; at most about 16 KiB each."""
    held, size = [], 0
    with open(path, "rb") as file:
        for line in file:
            if held and (size > 16_384 or (held[-1] == b"\n" and line != b"\n")):
                yield b"".join(held)
                held, size = [], 0
            held.append(line)
            size += len(line)
    if held:
        yield b"".join(held)


def put(bootstrap, topic, path, partitions):
    failures = []
    sender = producer(bootstrap, **{"compression.type": "lz4", "linger.ms": 20,
                                    "queue.buffering.max.messages": 200_000})

    def delivered(error, _):
        if error:
            failures.append(error)

    count = 0
    for count, text in enumerate(paragraphs(path), 1):
        key = count.to_bytes(8, "big")
        while True:
            try:
                sender.produce(topic, text, key, (count - 1) % partitions, on_delivery=delivered)
                break
            except BufferError:
                sender.poll(0.1)
        if count % 1000 == 0:
            sender.poll(0)
            check(not failures, failures[:1])
    check(sender.flush(120) == 0 and not failures, f"not delivered: {failures[:1]}")
    print(f"records={count}")


def get(bootstrap, topic, path, partitions):
    texts = [[] for _ in range(partitions)]
    for m in read(bootstrap, topic, partitions, **{"fetch.message.max.bytes": 4 << 20}):
        mine = texts[m.partition()]
        number = len(mine) * partitions + m.partition() + 1
        check(int.from_bytes(m.key(), "big") == number, f"record {m.key().hex()} where {number} belongs")
        mine.append(m.value())
    with open(path, "wb") as file:
        for row in range(len(texts[0])):
            for mine in texts:
                if row < len(mine):
                    file.write(mine[row])
    print(f"records={sum(map(len, texts))}")


def load(bootstrap, topic, partitions, receipt):
    """Numbered records, as many as the node takes, through every restart of it; acknowledgements into `receipt`."""
    sender = producer(bootstrap, **{
        "linger.ms": 2, "message.timeout.ms": 0, "batch.num.messages": 50, "queue.buffering.max.messages": 2_000,
        "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20,
        "socket.connection.setup.timeout.ms": 2_000, "topic.metadata.refresh.interval.ms": 1_000})
    fatal = []
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with open(receipt, "w", buffering=1) as file:
        def delivered(error, m):
            if error:
                fatal.append(f"{m.partition()} {m.value()}: {error}")
            else:
                file.write(f"{m.partition()} {m.value().decode()} {m.offset()}\n")

        counts = [0] * partitions
        while not stop.is_set() and not fatal:
            for partition in range(partitions):
                try:
                    sender.produce(topic, str(counts[partition]), b"k", partition, on_delivery=delivered)
                    counts[partition] += 1
                except BufferError:
                    sender.poll(0.01)
            sender.poll(0)
        rest = sender.flush(120)
    check(not fatal, f"{len(fatal)} deliveries failed: {fatal[:3]}")
    check(rest == 0, f"{rest} records were never delivered")
    print("sent=" + ",".join(map(str, counts)))


def verify(bootstrap, topic, partitions, receipt):
    acknowledged = [{} for _ in range(partitions)]
    with open(receipt) as file:
        for line in file:
            partition, number, offset = map(int, line.split())
            acknowledged[partition][number] = offset
    seen = [0] * partitions
    for m in read(bootstrap, topic, partitions):
        partition, number = m.partition(), int(m.value())
        check(number == seen[partition], f"partition {partition} offset {m.offset()}: {number} where {seen[partition]} belongs")
        claimed = acknowledged[partition].get(number)
        check(claimed in (None, -1, m.offset()), f"partition {partition}: {number} acknowledged at {claimed}, is at {m.offset()}")
        seen[partition] += 1
    for partition in range(partitions):
        most = max(acknowledged[partition], default=-1) + 1
        check(len(acknowledged[partition]) == most, f"partition {partition}: acknowledgements have gaps")
        check(seen[partition] >= most, f"partition {partition}: {most} acknowledged, {seen[partition]} there")
    print(f"records={sum(seen)} acknowledged={sum(map(len, acknowledged))}")


def keys(bootstrap, topic, partitions):
    found = [(m.partition(), m.key()) for m in read(bootstrap, topic, partitions)]
    print(f"records={len(found)} keys={len(set(found))}")


if __name__ == "__main__":
    commands = {"tour": tour, "delete": delete, "put": put, "get": get, "load": load, "verify": verify, "keys": keys}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    command, arguments = commands[sys.argv[1]], sys.argv[2:]
    if command in (put, get):
        arguments[3] = int(arguments[3])
    elif command in (load, verify, keys):
        arguments[2] = int(arguments[2])
    command(*arguments)
