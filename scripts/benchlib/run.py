"""Runs the chosen scenarios on both brokers in alternating rounds."""
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

from .servers import ROOT, Broker, Controller, Kafka, Semel

RAW = ROOT / "target/release/raw-load"
RDKAFKA = ROOT / ".tools/bin/rdkafka_performance"
LOAD_LIMIT_S = 180


def say(text):
    print(text, file=sys.stderr, flush=True)


def prepare(options, chosen):
    """Builds and installs what the run needs."""
    build = ["cargo", "build", "--release", "--quiet", "-p", "semel-tests", "--bin", "raw-load"]
    subprocess.run(build, cwd=ROOT, check=True)
    if not options.kafka_only:
        packages = [a for name in ("semel", "semel-broker", "semel-controller") for a in ("-p", name)]
        subprocess.run(["cargo", "build", "--release", "--quiet", *packages], cwd=ROOT, check=True)
    tools = [] if options.semel_only else ["java"]
    if any(s.kind.startswith("rdkafka") for s in chosen):
        tools.append("rdkafka")
    if tools:
        subprocess.run([ROOT / "scripts/tools", *tools], check=True)


def command(arguments):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=LOAD_LIMIT_S,
                          env={**os.environ, "RUST_BACKTRACE": "0"})
    if done.returncode:
        raise RuntimeError(f"{arguments[0]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout + done.stderr


def raw(verb, server, topic, *arguments):
    return json.loads(command([RAW, verb, server.address, topic, *arguments]).splitlines()[-1])


def create(server, topic, scenario):
    configs = [f"--config={k}={v}" for k, v in server.topic_config(scenario.durability).items()]
    raw("create", server, topic, "--partitions", scenario.partitions, *configs)


def rdkafka(server, topic, mode, count, *arguments):
    out = command([RDKAFKA, mode, "-t", topic, "-b", server.address, "-c", count, "-q", "-i", 600_000, *arguments])
    found = re.search(r"(\d+) delivered \(.*?, (\d+) failed\) in (\d+)ms", out) if mode == "-P" else \
        re.search(r"(\d+) messages \(\d+ bytes\) consumed in (\d+)ms", out)
    if not found:
        raise RuntimeError(f"rdkafka_performance said: {out[-1000:]}")
    done, ms = int(found.group(1)), int(found.group(found.lastindex))
    if done < count or (mode == "-P" and found.group(2) != "0"):
        raise RuntimeError(f"rdkafka_performance did {done} of {count}: {out[-1000:]}")
    return done, max(ms, 1) / 1000


PRODUCER = ["-a", -1, "-X", "enable.idempotence=true", "-X", "linger.ms=5", "-X", "queue.buffering.max.messages=500000"]


def produce(server, topic, scenario, size):
    """Produces into an existing topic; gives (seconds, bytes of values, records)."""
    if scenario.kind.startswith("raw"):
        arguments = ["--partitions", scenario.partitions, "--record", scenario.record, "--batch", scenario.batch,
                     "--bytes", size, "--per-request", scenario.per_request]
        got = raw("produce", server, topic, *arguments)
        return got["seconds"], got["bytes"], got["records"]
    count = size // scenario.record
    records, seconds = rdkafka(server, topic, "-P", count, "-s", scenario.record, *PRODUCER)
    return seconds, records * scenario.record, records


def fetch(server, topic, scenario, size):
    if scenario.kind.startswith("raw"):
        got = raw("fetch", server, topic, "--partitions", scenario.partitions, "--bytes", 10 * size)
        return got["seconds"], got["bytes"], got["records"]
    partitions = [a for p in range(scenario.partitions) for a in ("-p", p)]
    records, seconds = rdkafka(server, topic, "-C", size // scenario.record, "-o", "beginning", *partitions)
    return seconds, records * scenario.record, records


def measured(server, work):
    """Runs `work`, which gives (seconds, bytes, records), and adds what the broker paid."""
    before = server.cpu_s()
    seconds, size, records = work()
    cpu = server.cpu_s() - before
    return {"seconds": seconds, "bytes": size, "records": records, "mb_per_s": size / seconds / 1e6,
            "records_per_s": records / seconds, "cpu_s": cpu, "cpu_s_per_gb": cpu / (size / 1e9),
            "cpu_s_per_million": cpu / (records / 1e6)}


def round_of(server, scenario, size, number, filled, quick):
    topic = f"{scenario.name}-{number}"
    if scenario.kind == "latency":
        create(server, topic, scenario)
        before = server.cpu_s()
        got = raw("latency", server, topic, "--partitions", scenario.partitions, "--record", scenario.record,
                  "--records", scenario.records, "--rate", scenario.rate,
                  "--seconds", scenario.seconds // (2 if quick else 1))
        got["cpu_s"] = server.cpu_s() - before
        raw("delete", server, topic)
        return got
    if scenario.kind.endswith("fetch"):
        # Written once for all rounds: reads come from the page cache on both sides.
        topic = scenario.name
        if server.name not in filled:
            filled.add(server.name)
            create(server, topic, scenario)
            produce(server, topic, scenario, size)
            os.sync()
        return measured(server, lambda: fetch(server, topic, scenario, size))
    create(server, topic, scenario)
    got = measured(server, lambda: produce(server, topic, scenario, size))
    raw("delete", server, topic)
    return got


def startup_round(server):
    """Stops and starts the broker on its data; its memory counts once it stands still."""
    server.stop()
    server.start()
    return {"ready_s": server.ready_s, "idle_rss_mib": idle_memory(server) / (1 << 20)}


def idle_memory(server):
    """Bytes, once they have stood still for two seconds (or after ten)."""
    last, still = server.memory(), 0
    for _ in range(40):
        time.sleep(0.25)
        now = server.memory()
        still = still + 1 if abs(now - last) < 1 << 20 else 0
        last = now
        if still == 8:
            break
    return last


def separate_round(work):
    """Fresh processes of the separate binaries: time to ready, and memory when both are idle."""
    controller = Controller(work)
    broker = Broker(work, controller)
    try:
        controller.start(fresh=True)
        broker.start(fresh=True)
        broker_rss = idle_memory(broker)
        return {"controller_ready_s": controller.ready_s, "broker_ready_s": broker.ready_s,
                "controller_rss_mib": controller.memory() / (1 << 20), "broker_rss_mib": broker_rss / (1 << 20)}
    finally:
        broker.stop()
        controller.stop()


def warm_up(server, scenario, size, rounds, filled, quick):
    """A JVM's first rounds cost several times its later ones, so these do not count."""
    for number in range(rounds):
        round_of(server, scenario, size, f"warm-{number}", filled, quick)


def machine():
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    memory = next(int(line.split()[1]) // 1024 for line in open("/proc/meminfo") if line.startswith("MemTotal"))
    return {"cpu": cpu, "cores": os.cpu_count(), "memory_mib": memory, "kernel": platform.release(),
            "load_before": os.getloadavg()[0]}


def everything(chosen, options):
    prepare(options, chosen)
    begin = time.monotonic()
    rounds = options.rounds or (3 if options.quick else 5)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    results = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "quick": options.quick, "rounds": rounds,
               "machine": machine(), "commit": commit.stdout.strip(), "versions": {}, "scenarios": {}}
    # Not /tmp, which may be memory: an fsync must reach a disk.
    base = ROOT / "bench-results"
    base.mkdir(exist_ok=True)
    work = tempfile.mkdtemp(prefix="work-", dir=base)
    servers = [] if options.kafka_only else [Semel(work)]
    servers += [] if options.semel_only else [Kafka(work)]
    try:
        for server in servers:
            server.start(fresh=True)
            results["versions"][server.name] = server.version()
        for scenario in chosen:
            results["scenarios"][scenario.name] = one(scenario, servers, rounds, options.quick, work)
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(work, ignore_errors=True)
    results["took_s"] = time.monotonic() - begin
    return results


def one(scenario, servers, rounds, quick, base):
    begin = time.monotonic()
    size = scenario.quick_size if quick and scenario.quick_size else scenario.size
    got = {server.name: [] for server in servers}
    errors, filled = {}, set()
    if scenario.kind == "separate":
        servers = [s for s in servers if s.name == "semel"]
    elif scenario.kind != "startup":
        for server in servers:
            if server.name == "kafka":
                # Fixed rates and fsync take long for what they teach a compiler.
                warm = (3 if quick else 5) if scenario.kind != "latency" and scenario.durability == "os" else 1
                guarded(errors, server, lambda s=server: warm_up(s, scenario, size, warm, filled, quick))
    for number in range(rounds):
        for server in servers:
            if server.name in errors:
                continue
            # Neither pays for what the other left in the page cache.
            os.sync()
            value = guarded(errors, server, lambda s=server: any_round(s, scenario, size, number, filled, quick, base))
            if value is not None:
                got[server.name].append(value)
    for server in servers:
        if server.name in filled and server.name not in errors:
            guarded(errors, server, lambda s=server: raw("delete", s, scenario.name))
    say(f"{scenario.name}: {time.monotonic() - begin:.0f} s" + (f"  FAILED {errors}" if errors else ""))
    return {"about": scenario.about, "kind": scenario.kind, "durability": scenario.durability, "rounds": got,
            "errors": errors}


def any_round(server, scenario, size, number, filled, quick, base):
    match scenario.kind:
        case "startup":
            return startup_round(server)
        case "separate":
            return separate_round(base)
        case _:
            return round_of(server, scenario, size, number, filled, quick)


def guarded(errors, server, work):
    """One failing measure costs that measure, and is shown; it does not cost the rest of an hour."""
    try:
        return work()
    except (RuntimeError, subprocess.TimeoutExpired, ValueError, KeyError, OSError, SystemExit) as error:
        errors[server.name] = str(error)[-500:]
        return None
