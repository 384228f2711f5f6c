"""Medians, spreads, ratios, and which targets they meet."""
import json
import statistics
import time

from .servers import ROOT

# What is shown of each kind: (field, unit, whether more is better).
SHOWN = {
    "startup": [("ready_s", "s to ready", False), ("idle_rss_mib", "MiB idle", False)],
    "separate": [("controller_rss_mib", "MiB controller", False), ("broker_rss_mib", "MiB broker", False),
                 ("controller_ready_s", "s controller", False), ("broker_ready_s", "s broker", False)],
    "latency": [("p50_us", "us p50", False), ("p99_us", "us p99", False), ("p999_us", "us p999", False)],
    "throughput": [("mb_per_s", "MB/s", True), ("cpu_s_per_gb", "CPU-s/GB", False),
                   ("cpu_s_per_million", "CPU-s/M records", False)],
}

# Semel over Kafka, by scenario and field: (bound, whether it is an upper one).
RATIO_TARGETS = [
    ("raw-produce-1m", "cpu_s_per_gb", 1 / 2, True),
    ("raw-produce-16k", "cpu_s_per_gb", 1 / 4, True),
    ("rdkafka-produce-1k-1p", "cpu_s_per_gb", 1 / 2, True),
    ("rdkafka-produce-100b-1p", "cpu_s_per_gb", 1 / 2, True),
    ("raw-fetch-1p", "cpu_s_per_gb", 2 / 3, True),
    ("raw-produce-1m", "mb_per_s", 2, False),
    ("raw-produce-16k", "mb_per_s", 2, False),
    ("rdkafka-produce-1k-1p", "mb_per_s", 1, False),
    ("rdkafka-produce-100b-1p", "mb_per_s", 1, False),
    ("raw-fetch-1p", "mb_per_s", 1, False),
    ("latency-1k-os", "p99_us", 1 / 2, True),
    ("latency-1k-fsync", "p99_us", 1 / 2, True),
    ("raw-produce-1m-fsync", "mb_per_s", 3, False),
    ("raw-produce-16k-fsync", "mb_per_s", 3, False),
    ("rdkafka-produce-1k-fsync", "mb_per_s", 3, False),
    ("rdkafka-produce-100b-fsync", "mb_per_s", 3, False),
]
# Semel's own numbers: upper bounds.
OWN_TARGETS = [("startup", "ready_s", 0.5), ("startup", "idle_rss_mib", 48),
               ("startup-separate", "controller_rss_mib", 16), ("startup-separate", "broker_rss_mib", 16)]
# Semel with fsync over Kafka without.
CROSS_TARGETS = [
    ("rdkafka-produce-1k-fsync", "rdkafka-produce-1k-1p", "mb_per_s", 0.9),
    ("rdkafka-produce-100b-fsync", "rdkafka-produce-100b-1p", "mb_per_s", 0.9),
]


def fields(kind):
    return SHOWN.get(kind, SHOWN["throughput"])


def median(scenario, server, field):
    values = [r[field] for r in scenario["rounds"].get(server, [])] if scenario else []
    return statistics.median(values) if values else None


def summarize(results):
    for scenario in results["scenarios"].values():
        summary = {}
        for field, _, _ in fields(scenario["kind"]):
            entry = {}
            for server, rounds in scenario["rounds"].items():
                if rounds:
                    values = [r[field] for r in rounds]
                    entry[server] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
            if "semel" in entry and "kafka" in entry and entry["kafka"]["median"]:
                entry["ratio"] = entry["semel"]["median"] / entry["kafka"]["median"]
            summary[field] = entry
        scenario["summary"] = summary
    results["targets"] = list(targets(results["scenarios"]))


def targets(scenarios):
    def verdict(what, value, bound, upper):
        met = value <= bound if upper else value >= bound
        return {"what": what, "value": value, "bound": bound, "at_most": upper, "met": met}

    for name, field, bound, upper in RATIO_TARGETS:
        ratio = scenarios.get(name, {}).get("summary", {}).get(field, {}).get("ratio")
        if ratio is not None:
            yield verdict(f"{name} {field}, Semel / Kafka", ratio, bound, upper)
    for name, field, bound in OWN_TARGETS:
        value = median(scenarios.get(name), "semel", field)
        if value is not None:
            yield verdict(f"{name} {field}, Semel", value, bound, True)
    for ours, theirs, field, bound in CROSS_TARGETS:
        a, b = median(scenarios.get(ours), "semel", field), median(scenarios.get(theirs), "kafka", field)
        if a is not None and b:
            yield verdict(f"{ours} of Semel / {theirs} of Kafka, {field}", a / b, bound, False)


def write(results):
    summarize(results)
    path = ROOT / "bench-results" / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    return path


def number(value):
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.1f}"


def cell(entry):
    return f"{number(entry['median'])} [{number(entry['min'])} to {number(entry['max'])}]" if entry else "-"


def show(results):
    m = results["machine"]
    print(f"{m['cpu']}, {m['cores']} cores, {m['memory_mib']} MiB, Linux {m['kernel']}, "
          f"load before {m['load_before']:.2f}; {results['rounds']} rounds; {results['versions']}; took {results['took_s']:.0f} s")
    print("median [least to most]; ratio = Semel / Kafka\n")
    print(f"{'measure':28} {'unit':16} {'Semel':28} {'Kafka':28} ratio")
    for name, scenario in results["scenarios"].items():
        for field, unit, _ in fields(scenario["kind"]):
            entry = scenario["summary"][field]
            ratio = f"{entry['ratio']:.2f}" if "ratio" in entry else "-"
            print(f"{name:28} {unit:16} {cell(entry.get('semel')):28} {cell(entry.get('kafka')):28} {ratio}")
        for server, error in scenario["errors"].items():
            print(f"{name:28} FAILED on {server}: {error}")
    if results["targets"]:
        print("\ntargets")
    for t in results["targets"]:
        sign = "at most" if t["at_most"] else "at least"
        print(f"  {'met   ' if t['met'] else 'MISSED'} {t['what']}: {number(t['value'])}, {sign} {number(t['bound'])}")
