"""Timestamps of the next records that groups will read, from Kafka's own consumer in the driver's JVM."""

from __future__ import annotations

import time
from typing import Any, Self

from pyspark.sql import SparkSession

from spark_jobs.common.session import java_class
from spark_jobs.common.source import SourceConfig

Partition = tuple[str, int]
"""Topic and partition number."""

PATIENCE_S = 30.0
"""Time limit of one call, for all its records."""

POLL_MS = 500
MAX_BYTES = 16_384
"""Fetch limit per partition: one record is enough, and the broker still sends a larger batch whole."""


class OldestRecords:
    """A consumer without a group, opened at the first call; close it."""

    def __init__(self, spark: SparkSession, source: SourceConfig) -> None:
        self._spark = spark
        self._source = source
        self._consumer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _open(self) -> Any:
        settings = java_class(self._spark, "java.util.Properties")()
        own = {
            "bootstrap.servers": self._source.bootstrap_servers,
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": "false",
            "isolation.level": "read_uncommitted",
            "max.partition.fetch.bytes": str(MAX_BYTES),
            "max.poll.records": str(2**31 - 1),
        }
        for key, value in {**self._source.client_properties, **own}.items():
            if key != "group.id":
                settings.setProperty(key, value)
        deserializer = java_class(self._spark, "org.apache.kafka.common.serialization.ByteArrayDeserializer")
        return java_class(self._spark, "org.apache.kafka.clients.consumer.KafkaConsumer")(
            settings, deserializer(), deserializer()
        )

    def times_ms(self, spans: dict[Partition, tuple[int, int]]) -> dict[Partition, int]:
        """Timestamps, in milliseconds, of the first record of each span of offsets, its end excluded.

        Omits a span without records (only transaction markers, or compacted) and a record without a timestamp. Raises
        ValueError if the brokers do not deliver the records within `PATIENCE_S`.
        """
        if not spans:
            return {}
        self._consumer = consumer = self._consumer or self._open()
        partition_of = java_class(self._spark, "org.apache.kafka.common.TopicPartition")
        missing = {partition: partition_of(*partition) for partition in spans}
        found: dict[Partition, int] = {}
        consumer.assign(self._listed(missing.values()))
        for partition, key in missing.items():
            consumer.seek(key, spans[partition][0])
        deadline = time.monotonic() + PATIENCE_S
        while missing:
            polled = consumer.poll(java_class(self._spark, "java.time.Duration").ofMillis(POLL_MS))
            done = []
            for partition, key in missing.items():
                records = polled.records(key)
                if len(records) and records[0].offset() < spans[partition][1]:
                    found[partition] = records[0].timestamp()
                elif not len(records) and consumer.position(key) < spans[partition][1]:
                    continue
                done.append(partition)
            if done:
                consumer.pause(self._listed(missing.pop(partition) for partition in done))
            if missing and time.monotonic() > deadline:
                topic, number = min(missing)
                raise ValueError(f"no record of {topic}-{number} could be read within {PATIENCE_S:.0f} s")
        return {partition: timestamp for partition, timestamp in found.items() if timestamp >= 0}

    def _listed(self, keys: Any) -> Any:
        made = java_class(self._spark, "java.util.ArrayList")()
        for key in keys:
            made.add(key)
        return made
