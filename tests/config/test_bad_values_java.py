"""Bad values in server.properties: they stop our broker if they stop Kafka's, with the same message."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from tests.kit.jars import java, kafka_classpath

SINGLE = {
    "num.io.threads": ("0", "-1", "x", "2147483648", "1"),
    "num.network.threads": ("0", "-1"),
    "num.replica.fetchers": ("0", "-1", "100000"),
    "num.recovery.threads.per.data.dir": ("0", "-1", "1000"),
    "background.threads": ("0", "-1", "1"),
    "log.cleaner.threads": ("-1", "x", "128"),
    "log.cleaner.dedupe.buffer.size": ("-1", "0", "1048576", "1048577", "x"),
    "log.cleaner.io.buffer.size": ("-1", "0"),
    "log.cleaner.io.buffer.load.factor": ("-1", "x", "5"),
    "log.cleaner.io.max.bytes.per.second": ("-1", "0", "fast"),
    "log.cleaner.backoff.ms": ("-1", "0"),
    "log.cleaner.min.cleanable.ratio": ("-0.1", "1.1", "1"),
    "log.cleaner.delete.retention.ms": ("-1", "0"),
    "log.cleaner.min.compaction.lag.ms": ("-1",),
    "log.cleaner.max.compaction.lag.ms": ("0", "-1"),
    "log.cleanup.policy": ("shred", "", "compact,delete", "delete,,compact"),
    "log.retention.ms": ("0", "-1", "-2", "x"),
    "log.retention.minutes": ("0", "-1", "-5"),
    "log.retention.hours": ("0", "-1"),
    "log.retention.bytes": ("-1", "-2", "0"),
    "log.retention.check.interval.ms": ("0", "-1"),
    "log.segment.bytes": ("13", "14", "2147483648"),
    "log.segment.delete.delay.ms": ("-1",),
    "log.roll.ms": ("0", "-1"),
    "log.roll.hours": ("0",),
    "log.roll.jitter.ms": ("-1",),
    "log.roll.jitter.hours": ("-1",),
    "log.index.size.max.bytes": ("3", "4"),
    "log.index.interval.bytes": ("-1",),
    "log.flush.interval.messages": ("0", "-1"),
    "log.flush.interval.ms": ("-1", "x"),
    "log.flush.scheduler.interval.ms": ("-1",),
    "log.flush.offset.checkpoint.interval.ms": ("-1",),
    "log.message.timestamp.type": ("createtime",),
    "log.message.timestamp.before.max.ms": ("-1",),
    "log.message.timestamp.after.max.ms": ("-1",),
    "log.preallocate": ("yes",),
    "message.max.bytes": ("-1",),
    "min.insync.replicas": ("0",),
    "compression.type": ("none",),
    "compression.gzip.level": ("0", "10", "-1"),
    "compression.lz4.level": ("0", "18"),
    "compression.zstd.level": ("23", "-131073"),
    "max.connections": ("-1",),
    "max.connections.per.ip": ("-1", "0"),
    "max.connection.creation.rate": ("-1",),
    "replica.alter.log.dirs.io.max.bytes.per.second": ("-1", "x"),
    "num.replica.alter.log.dirs.threads": ("0", "-1"),
    "alter.log.dirs.replication.quota.window.num": ("0",),
    "alter.log.dirs.replication.quota.window.size.seconds": ("0",),
    "producer.id.expiration.ms": ("0",),
    "unclean.leader.election.enable": ("maybe",),
    "group.min.session.timeout.ms": ("x",),
    "offsets.retention.minutes": ("0",),
}
TOGETHER: list[dict[str, str]] = [
    {"log.cleaner.threads": "128", "log.cleaner.dedupe.buffer.size": "134217728"},
    {"log.cleaner.threads": "127", "log.cleaner.dedupe.buffer.size": "134217728"},
    {"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "2097152"},
    {"log.cleaner.min.compaction.lag.ms": "10", "log.cleaner.max.compaction.lag.ms": "5"},
    {"log.retention.ms": "1000", "log.local.retention.ms": "2000"},
    {"log.retention.bytes": "1000", "log.local.retention.bytes": "2000"},
    {"log.roll.ms": "10", "log.roll.jitter.ms": "20"},
    {"log.segment.bytes": "100", "message.max.bytes": "200"},
    {"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "5"},
    {"queued.max.request.bytes": "10", "socket.request.max.bytes": "20"},
    {"replica.fetch.wait.max.ms": "500", "replica.socket.timeout.ms": "400"},
    {"replica.fetch.wait.max.ms": "40000", "replica.lag.time.max.ms": "30000", "replica.socket.timeout.ms": "50000"},
    {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:5"},
    {"broker.id": "5", "node.id": "6"},
    {"broker.id": "2000", "reserved.broker.max.id": "1000"},
    {"log.dirs": "", "log.dir": ""},
]
CASES = [{key: value} for key, values in SINGLE.items() for value in values] + TOGETHER

OTHERWISE = {
    # Kafka starts, but no member can ever join a group.
    '{"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "5"}': (
        "group.max.session.timeout.ms must be greater than or equal to group.min.session.timeout.ms"
    ),
}
"""Our messages where Kafka's differ or are missing."""


def ours(file: Path, properties: dict[str, str]) -> str | None:
    try:
        BrokerConfig.load(file, properties)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.java
def test_what_stops_kafka_stops_us(tmp_path: Path) -> None:
    program = Path(__file__).with_name("java") / "ConfigErrors.java"
    command = java("-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", kafka_classpath(), str(program))
    asked = "".join(json.dumps(each) + "\n" for each in CASES)
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(CASES)
    file = tmp_path / "server.properties"
    file.touch()
    different = {
        json.dumps(case): (theirs, mine)
        for case, theirs in zip(CASES, answers, strict=True)
        if (mine := ours(file, case)) != (theirs and theirs.removeprefix("requirement failed: "))
    }
    assert {case: mine for case, (_, mine) in different.items()} == OTHERWISE, json.dumps(different, indent=1)
