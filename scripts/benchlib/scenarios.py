"""What is measured: each scenario's load, in full and quick size."""
from dataclasses import dataclass

MB = 1_000_000


@dataclass(frozen=True)
class Scenario:
    name: str
    about: str
    kind: str  # startup, separate, raw-produce, raw-fetch, rdkafka-produce, rdkafka-fetch, latency
    durability: str = "os"  # os or fsync
    record: int = 1024  # bytes of a record's value
    partitions: int = 1
    batch: int = 1_000_000  # raw: bytes of a batch
    per_request: int = 1  # raw: partitions in a request
    size: int = 0  # bytes of a round
    quick_size: int = 0  # 0: not part of --quick
    rate: int = 0  # latency: requests per second
    records: int = 1  # latency: records in a request
    seconds: int = 10  # latency: measured


def _all():
    s = Scenario
    out = [s("startup", "start on existing data: time to ready, and memory when idle", "startup", quick_size=1)]
    out.append(s("startup-separate", "semel-controller and semel-broker as processes of their own", "separate",
                 quick_size=1))
    # Raw: nearly all CPU is the broker's.
    out += [
        s("raw-produce-1m", "1 MB batches of 1 KiB records, one partition", "raw-produce",
          size=1000 * MB, quick_size=300 * MB),
        s("raw-produce-16k", "16 KB batches of 1 KiB records, one partition", "raw-produce",
          batch=16_384, size=300 * MB, quick_size=100 * MB),
        s("raw-produce-1m-100b", "1 MB batches of 100 B records, one partition", "raw-produce",
          record=100, size=1000 * MB),
        s("raw-produce-16k-100b", "16 KB batches of 100 B records, one partition", "raw-produce",
          record=100, batch=16_384, size=300 * MB),
        s("raw-produce-1m-100p", "1 MB batches of 1 KiB records, 100 partitions in turn", "raw-produce",
          partitions=100, size=1000 * MB),
        s("raw-produce-16k-100p", "16 KB batches of 1 KiB records, 100 partitions, 20 in a request", "raw-produce",
          batch=16_384, partitions=100, per_request=20, size=300 * MB),
        s("raw-fetch-1p", "fetch of 1 MB batches, one partition", "raw-fetch", size=1000 * MB, quick_size=500 * MB),
        s("raw-fetch-16k-1p", "fetch of 16 KB batches, one partition", "raw-fetch", batch=16_384, size=500 * MB),
        s("raw-fetch-100p", "fetch of 16 KB batches, 100 partitions", "raw-fetch",
          batch=16_384, partitions=100, per_request=20, size=500 * MB),
    ]
    # librdkafka: idempotent, acks=all, as users send it.
    for name, record in (("1k", 1024), ("100b", 100)):
        for partitions in (1, 100):
            quick = (200 if record == 1024 else 100) * MB if partitions == 1 else 0
            out.append(s(f"rdkafka-produce-{name}-{partitions}p",
                         f"librdkafka, idempotent, {record} B records, {partitions} partition(s)", "rdkafka-produce",
                         record=record, partitions=partitions, size=(600 if record == 1024 else 200) * MB,
                         quick_size=quick))
        for partitions in (1, 100):
            out.append(s(f"rdkafka-fetch-{name}-{partitions}p",
                         f"librdkafka consumer by assignment, {record} B records, {partitions} partition(s)",
                         "rdkafka-fetch", record=record, partitions=partitions,
                         size=(600 if record == 1024 else 200) * MB))
    # fsync against fsync.
    out += [
        s("raw-produce-1m-fsync", "1 MB batches, each on stable storage before its answer", "raw-produce",
          durability="fsync", size=300 * MB),
        s("raw-produce-16k-fsync", "16 KB batches, each on stable storage before its answer", "raw-produce",
          durability="fsync", batch=16_384, size=30 * MB),
        s("rdkafka-produce-1k-fsync", "librdkafka, idempotent, 1 KiB records, fsync", "rdkafka-produce",
          durability="fsync", size=150 * MB, quick_size=50 * MB),
        s("rdkafka-produce-100b-fsync", "librdkafka, idempotent, 100 B records, fsync", "rdkafka-produce",
          durability="fsync", record=100, size=50 * MB),
    ]
    # Latency at a fixed rate, from the moment a request was due.
    out += [
        s("latency-1k-os", "1000 requests/s of one 1 KiB record, idempotent, acks=all", "latency", rate=1000,
          seconds=10, quick_size=1),
        s("latency-100b-os", "500 requests/s of 40 records of 100 B, 10 partitions", "latency", record=100, records=40,
          partitions=10, rate=500, seconds=10),
        s("latency-1k-fsync", "100 requests/s of one 1 KiB record, fsync", "latency", durability="fsync", rate=100,
          seconds=10, quick_size=1),
    ]
    return out


def choose(options):
    chosen = _all()
    if options.only:
        chosen = [s for s in chosen if any(part in s.name for part in options.only)]
        if not chosen:
            raise SystemExit(f"no measure is named like {options.only}; see --list")
    elif options.quick:
        chosen = [s for s in chosen if s.quick_size]
    return chosen
