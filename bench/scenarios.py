"""Scenarios: each puts one load on one broker and returns one sample."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace

from bench import starts
from bench.brokers import Broker
from bench.compaction import Cleaning, clean, fill
from bench.processes import cpu_s
from bench.scenario import Context, Measure, Sample, Scenario

LATENCY_RATE = 5_000
IDLE_S = 5
READY_TOPIC = "bench-ready"
"""Topic created on every broker that its scenario does not launch."""
FSYNC_S = 20
AS_IT_IS = {"ODRADEK_COMPILED": "0"}
"""Environment of compaction without the compiled record code, even if that exists."""
PERF_LINE = re.compile(r"([\d.]+) records/sec \(([\d.]+) MB/sec\)")


def address_of(broker: Broker) -> str:
    """The broker's address for the clients of most scenarios."""
    return broker.address


def produce(
    records: int, size: int, mode: str = "produce", acks: int = 1, at: Callable[[Broker], str] = address_of
) -> Measure:
    """Records a second (in batches), and the CPU of both sides."""

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        before = broker.cpu_s()
        result = context.load.run(mode, at(broker), topic, context.count(records), size, acks)
        spent = broker.cpu_s() - before
        context.load.run("delete", broker.address, topic)
        return throughput(result, spent)

    return measure


def consume(records: int, size: int, at: Callable[[Broker], str] = address_of) -> Measure:
    """Records a second from a topic that was just written, and the CPU of both sides for reading."""

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        count = context.count(records)
        context.load.run("produce", broker.address, topic, count, size, 1)
        before = broker.cpu_s()
        result = context.load.run("consume", at(broker), topic, count)
        spent = broker.cpu_s() - before
        context.load.run("delete", broker.address, topic)
        return throughput(result, spent)

    return measure


def consume_after_restart(records: int, size: int) -> Measure:
    """Records a second from a topic that existed when the broker started, so that none of it is checked yet; `warm` is
    a second read.
    """

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        count = context.count(records)
        context.load.run("produce", broker.address, topic, count, size, 1)
        broker.restart()
        context.load.run("first", broker.address, READY_TOPIC)
        samples = []
        for _ in range(2):
            before = broker.cpu_s()
            result = context.load.run("consume", broker.address, topic, count)
            samples.append(throughput(result, broker.cpu_s() - before))
        return replace(samples[0], warm=samples[1])

    return measure


def throughput(result: dict[str, float], broker_cpu_s: float) -> Sample:
    """A sample of records a second from the load's output."""
    return Sample(
        value=result["records"] / result["seconds"],
        broker_cpu_s=broker_cpu_s,
        client_cpu_s=result["client_cpu_s"],
        gigabytes=result["bytes"] / 1e9,
    )


def unbatched(context: Context, broker: Broker, topic: str) -> Sample:
    """Requests a second with one record of 100 bytes each, pipelined; below, CPU in microseconds per request."""
    sample = produce(100_000, 100, "unbatched")(context, broker, topic)
    requests = context.count(100_000)
    spent = {"broker": sample.broker_cpu_s or 0, "client": sample.client_cpu_s or 0}
    details = {f"{whose}_CPU_us_a_request": seconds / requests * 1e6 for whose, seconds in spent.items()}
    return Sample(sample.value, details=details)


def fsync_per_ack(producers: int) -> Measure:
    """Acknowledgements a second to producers that wait for each record of 100 bytes; each is on disk before its ack."""

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        context.load.run("create", broker.address, topic, 1, "flush.messages=1")
        before = broker.cpu_s()
        seconds = max(FSYNC_S * context.scale, 2)
        result = context.load.run("waiting", broker.address, topic, seconds, 100, producers)
        spent = broker.cpu_s() - before
        context.load.run("delete", broker.address, topic)
        rate = result["records"] / result["seconds"]
        return Sample(rate, details={"ms_an_acknowledgement": producers / rate * 1e3, "broker_CPU_s": spent})

    return measure


def latency(context: Context, broker: Broker, topic: str) -> Sample:
    """p99 in milliseconds from the time a record was due to be sent until the consumer had it."""
    # Once to warm up: users do not wait for a JIT that compiles the path.
    context.load.run("latency", broker.address, f"{topic}-warm", context.count(10_000), LATENCY_RATE)
    before = broker.cpu_s()
    result = context.load.run("latency", broker.address, topic, context.count(50_000), LATENCY_RATE)
    return Sample(
        value=result["p99_ms"],
        broker_cpu_s=broker.cpu_s() - before,
        client_cpu_s=result["client_cpu_s"],
        details={name: result[name] for name in ("p50_ms", "p99_ms", "p999_ms")},
    )


def compaction(records: int, size: int, *, compiled: bool = False) -> Measure:
    """Megabytes a second of cleaning a log with every key ten times, from the release to the checkpoint."""

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        if compiled:
            broker.build_fast()
        made = fill(context.load, broker, topic, context.count(records), size)
        before = broker.cpu_s()
        dirty_bytes, left_bytes, seconds = clean(made)
        spent = broker.cpu_s() - before
        context.load.run("delete", broker.address, topic)
        details = {"percent_left": 100 * left_bytes / dirty_bytes}
        return Sample(dirty_bytes / seconds / 1e6, spent, gigabytes=dirty_bytes / 1e9, details=details)

    return measure


def latency_while_cleaning(context: Context, broker: Broker, topic: str) -> Sample:
    """p99 in milliseconds as in `latency`, while the cleaner works and, below, while it is idle."""
    made = fill(context.load, broker, f"{topic}-dirty", context.count(5_000_000), 100)
    context.load.run("latency", broker.address, f"{topic}-warm", context.count(10_000), LATENCY_RATE)
    at_rest = context.load.run("latency", broker.address, topic, context.count(50_000), LATENCY_RATE)
    began_s = time.monotonic()
    cleaning = Cleaning(made)
    result = context.load.run("latency", broker.address, f"{topic}-2", context.count(50_000), LATENCY_RATE)
    ended_s = time.monotonic()
    cleaning.wait()
    shared = min(cleaning.ended_s, ended_s) - began_s
    return Sample(
        value=result["p99_ms"],
        details={
            "p99_ms_at_rest": at_rest["p99_ms"],
            "percent_of_the_time_cleaning": 100 * shared / (ended_s - began_s),
        },
    )


def start(context: Context, broker: Broker, topic: str) -> Sample:
    """Milliseconds from the launch to the first acknowledgement for a client that already waits (new topic)."""
    client = context.load.spawn("first", broker.address, topic)
    try:
        time.sleep(0.3)
        began = time.monotonic()
        broker.launch()
        # The load prints the line at the acknowledgement; its own clock began before the launch.
        line = client.stdout.readline() if client.stdout is not None else b""
        taken_ms = (time.monotonic() - began) * 1000
    finally:
        client.kill()
        client.communicate()
    if b"seconds" not in line:
        raise RuntimeError(f"{broker.name} did not acknowledge a first record")
    return Sample(value=taken_ms, broker_cpu_s=broker.cpu_s())


def idle_memory(context: Context, broker: Broker, topic: str) -> Sample:
    """Resident megabytes a few seconds after the start, with two topics of one record each."""
    context.load.run("first", broker.address, topic)
    time.sleep(IDLE_S)
    return Sample(value=broker.rss_bytes() / 1e6, broker_cpu_s=broker.cpu_s())


def start_with(partitions: int) -> Measure:
    """Seconds from the launch until each of `partitions` has a leader, after a clean stop (2 MB each: bench.starts).

    Also the seconds of that stop and of the start after kill -9, and the usage of the idle broker.
    """

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        count = context.count(partitions)
        broker.end()
        bare_s = starts.launch_until_led(broker, READY_TOPIC, 1)
        context.load.run("create", broker.address, topic, count)
        began = time.monotonic()
        broker.end()
        stop_s = time.monotonic() - began
        starts.grow(broker.directory / "data", topic, count)
        start_s = starts.launch_until_led(broker, topic, count)
        spent = broker.cpu_s()
        time.sleep(IDLE_S)
        idle_percent = (cpu_s(broker.pid) - spent) / IDLE_S * 100
        memory = broker.rss_bytes() / 1e6
        broker.kill()
        killed_s = starts.launch_until_led(broker, topic, count)
        details = {
            "ms_more_for_each_partition": (start_s - bare_s) * 1000 / count,
            "seconds_of_the_stop_before": stop_s,
            "seconds_to_start_after_kill_-9": killed_s,
            "idle_CPU_percent": idle_percent,
            "idle_memory_MB": memory,
        }
        return Sample(start_s, broker_cpu_s=spent, details=details)

    return measure


def recovery(records: int, size: int, mode: str = "produce") -> Measure:
    """Megabytes of log a second that a start after kill -9 checks and repairs, by the broker's own clock."""

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        context.load.run(mode, broker.address, topic, context.count(records), size, 1)
        broker.kill()
        starts.launch_until_led(broker, topic, 1)
        taken = sum(path.stat().st_size for path in (broker.directory / "data" / f"{topic}-0").glob("*.log"))
        return Sample(taken / 1e6 / max(starts.loading_s(broker), 0.001))

    return measure


def create_partitions(context: Context, broker: Broker, topic: str) -> Sample:
    """Seconds to create one topic of 10,000 partitions, until every partition has a leader."""
    rss = broker.rss_bytes()
    before = broker.cpu_s()
    result = context.load.run("create", broker.address, topic, context.count(10_000))
    spent = broker.cpu_s() - before
    kilobytes = (broker.rss_bytes() - rss) / result["partitions"] / 1000
    return Sample(value=result["seconds"], broker_cpu_s=spent, details={"kB_a_partition": kilobytes})


def java_produce(context: Context, broker: Broker, topic: str) -> Sample:
    """Records a second by kafka-producer-perf-test (1,000 bytes, acks=1)."""
    count = context.count(1_000_000)
    before = broker.cpu_s()
    done = context.load.kafka_tool(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(count),
        "--record-size", "1000", "--throughput", "-1",
        "--producer-props", f"bootstrap.servers={broker.address}", "acks=1",
    )  # fmt: skip
    spent = broker.cpu_s() - before
    found = PERF_LINE.findall(done.output)
    if not found:
        raise RuntimeError(f"kafka-producer-perf-test printed no result: {done.output[-500:]}")
    context.load.run("delete", broker.address, topic)
    return Sample(float(found[-1][0]), broker_cpu_s=spent, client_cpu_s=done.cpu_s, gigabytes=count * 1000 / 1e9)


def java_consume(context: Context, broker: Broker, topic: str) -> Sample:
    """Records a second by kafka-consumer-perf-test (1,000 bytes), as it reports them, without the time to join."""
    count = context.count(1_000_000)
    context.load.run("produce", broker.address, topic, count, 1000, 1)
    before = broker.cpu_s()
    done = context.load.kafka_tool(
        "org.apache.kafka.tools.ConsumerPerformance", "--topic", topic, "--messages", str(count),
        "--bootstrap-server", broker.address, "--timeout", "60000",
    )  # fmt: skip
    spent = broker.cpu_s() - before
    names, values = [[cell.strip() for cell in line.split(",")] for line in done.output.strip().splitlines()[-2:]]
    row = dict(zip(names, values, strict=True))
    if int(row["data.consumed.in.nMsg"]) < count:
        raise RuntimeError(f"kafka-consumer-perf-test read {row['data.consumed.in.nMsg']} of {count} records")
    context.load.run("delete", broker.address, topic)
    return Sample(
        float(row["fetch.nMsg.sec"]), broker_cpu_s=spent, client_cpu_s=done.cpu_s, gigabytes=count * 1000 / 1e9
    )


SCENARIOS = [
    Scenario("produce-100", "produce 100 B, acks=1", "records/s",
        produce(5_000_000, 100), rounds=5, target=1.8, cpu_target=0.25, also_warm=True,
    ),
    Scenario("produce-1000", "produce 1 kB, acks=1", "records/s",
        produce(1_000_000, 1000), target=2.0, cpu_target=0.2, also_warm=True,
    ),
    Scenario("consume-1000", "consume 1 kB", "records/s",
        consume(2_000_000, 1000), target=1.1, cpu_target=0.8, also_warm=True,
    ),
    Scenario("consume-100", "consume 100 B", "records/s",
        consume(10_000_000, 100), target=0.9, also_warm=True,
    ),
    Scenario("restarted-1000", "consume 1 kB after a restart", "records/s", consume_after_restart(2_000_000, 1000)),
    Scenario("unbatched", "produce, 1 record a request", "requests/s",
        unbatched, target=4.0, also_warm=True,
    ),
    Scenario("fsync-1", "fsync per ack, 1 producer", "acks/s", fsync_per_ack(1), target=1.0),
    Scenario("fsync-10", "fsync per ack, 10 producers", "acks/s", fsync_per_ack(10), target=2.0),
    Scenario("fsync-100", "fsync per ack, 100 producers", "acks/s", fsync_per_ack(100), target=3.0),
    Scenario("latency", "p99 end to end at 5,000 records/s", "ms", latency, higher_is_better=False, target=0.5),
    Scenario(
        "latency-cleaning", "p99 end to end, cleaner at work", "ms", latency_while_cleaning, higher_is_better=False,
    ),
    Scenario("compact-1000", "compaction, 1 kB", "MB/s", compaction(1_000_000, 1000), target=1.0, environment=AS_IT_IS),
    Scenario(
        "compact-100", "compaction, 100 B", "MB/s", compaction(5_000_000, 100), target=0.5, environment=AS_IT_IS,
    ),
    Scenario(
        "compact-100-compiled", "compaction, 100 B, build-fast", "MB/s",
        compaction(5_000_000, 100, compiled=True), target=1.0,
    ),
    Scenario(
        "start", "start to first acknowledged record", "ms", start,
        higher_is_better=False, target=0.15, limit=400, launches=True,
    ),
    Scenario(
        "memory", "resident memory, idle", "MB", idle_memory,
        higher_is_better=False, target=0.15, limit=50,
    ),
    Scenario(
        "partitions", "create a topic of 10,000 partitions", "s", create_partitions, 1,
        higher_is_better=False, target=0.2, leaves_many_files=True,
    ),
    Scenario(
        "start-1000", "start with 1,000 partitions, 2 GB", "s", start_with(1_000), 1,
        higher_is_better=False, limit=5, leaves_many_files=True,
    ),
    Scenario(
        "start-10000", "start with 10,000 partitions, 20 GB", "s", start_with(10_000), 1,
        higher_is_better=False, limit=5, leaves_many_files=True,
    ),
    Scenario("recover-1000", "recovery after kill -9, 1 kB", "MB/s", recovery(1_000_000, 1000)),
    Scenario(
        "recover-100", "recovery, 1 record a batch", "MB/s", recovery(200_000, 100, "unbatched"),
    ),
    Scenario("java-produce", "kafka-producer-perf-test 1 kB", "records/s", java_produce),
    Scenario("java-consume", "kafka-consumer-perf-test 1 kB", "records/s", java_consume),
]  # fmt: skip
