"""Scenarios with Spark; one session works on the brokers of both sides."""

from __future__ import annotations

from bench.brokers import Broker
from bench.load import SparkSession
from bench.scenario import Context, Measure, Sample, Scenario
from bench.spark_session import PARTITIONS

STREAM_RATE = 100
STREAM_TRIGGER = "100 milliseconds"


def session(context: Context) -> SparkSession:
    """The session of the run."""
    if context.spark is None:
        context.spark = context.until_the_end.enter_context(SparkSession())
    return context.spark


def warmed(measure: Measure) -> Measure:
    """`measure`, but run once before its first sample, to exclude compilation in Spark's JVM."""
    is_warm = False

    def measure_warm(context: Context, broker: Broker, topic: str) -> Sample:
        nonlocal is_warm
        if not is_warm:
            measure(context, broker, f"{topic}-uncounted")
            is_warm = True
        return measure(context, broker, topic)

    return measure_warm


def measured(
    context: Context, broker: Broker, expected: int, gigabytes: float, what: str, **arguments: object
) -> Sample:
    """Records a second of a Spark job, and the CPU of both sides; raises RuntimeError if records are missing."""
    before = broker.cpu_s()
    records, seconds, client_cpu_s = session(context).do(what, address=broker.address, **arguments)
    spent = broker.cpu_s() - before
    if records != expected:
        raise RuntimeError(f"Spark's {what} counts {records} records, not {expected}")
    return Sample(records / seconds, broker_cpu_s=spent, client_cpu_s=client_cpu_s, gigabytes=gigabytes)


def reading(records: int, size: int) -> Measure:
    """Records a second that Spark reads from a topic that was just filled."""

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        each = context.count(records) // PARTITIONS
        context.load.run("create", broker.address, topic, PARTITIONS)
        expected = 0
        for partition in range(PARTITIONS):
            filled = context.load.run("produce", broker.address, f"{topic}/{partition}", each, size, 1)
            expected += filled["end_offset"]
        sample = measured(context, broker, expected, expected * size / 1e9, "read", topic=topic)
        context.load.run("delete", broker.address, topic)
        return sample

    return warmed(measure)


def writing(records: int, size: int) -> Measure:
    """Records a second that Spark writes with the Kafka sink, all of them acknowledged."""

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        count = context.count(records)
        context.load.run("create", broker.address, topic, PARTITIONS)
        sample = measured(context, broker, count, count * size / 1e9, "write", topic=topic, records=count, size=size)
        context.load.run("delete", broker.address, topic)
        return sample

    return warmed(measure)


def streaming(context: Context, broker: Broker, topic: str) -> Sample:
    """p99 in milliseconds from the time a record was due to be sent until a consumer had it from the output topic of a
    streaming query. Measures a second query: the first one warms up Spark and the broker.
    """

    def copied(topic: str, records: int) -> Sample:
        context.load.run("create", broker.address, topic, 1)
        context.load.run("create", broker.address, f"{topic}-out", 1)
        addressed = {"address": broker.address, "topic": topic, "to": f"{topic}-out"}
        session(context).do("copy", **addressed, trigger=STREAM_TRIGGER)
        try:
            before = broker.cpu_s()
            result = context.load.run("latency", broker.address, topic, records, STREAM_RATE, 1, f"{topic}-out")
            spent = broker.cpu_s() - before
        finally:
            session(context).do("stop")
        return Sample(result["p99_ms"], broker_cpu_s=spent, details={"p50_ms": result["p50_ms"]})

    copied(f"{topic}-warm", context.count(20 * STREAM_RATE))
    return copied(topic, context.count(60 * STREAM_RATE))


SCENARIOS = [
    Scenario("spark-read-100", "Spark reads 10,000,000 x 100 B", "records/s",
        reading(10_000_000, 100), target=1.1, cpu_target=0.4,
    ),
    Scenario("spark-read-1000", "Spark reads 2,000,000 x 1 kB", "records/s",
        reading(2_000_000, 1000), target=1.1, cpu_target=0.4,
    ),
    Scenario("spark-write-100", "Spark writes 10,000,000 x 100 B", "records/s", writing(10_000_000, 100), target=1.1),
    Scenario("spark-write-1000", "Spark writes 2,000,000 x 1 kB", "records/s", writing(2_000_000, 1000), target=1.1),
    Scenario("spark-stream", "p99 through a query, trigger 100 ms", "ms",
        warmed(streaming), higher_is_better=False, target=1.0, detail_targets={"p50_ms": 1.0},
    ),
]  # fmt: skip
