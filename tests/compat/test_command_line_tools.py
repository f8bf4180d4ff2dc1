"""Kafka's own command-line tools, unmodified: one of every kind. tests/tools compares ours with them."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tests.kit.broker_process import BrokerProcess
from tests.kit.jars import java, kafka_classpath

TIMEOUT_S = 60

pytestmark = pytest.mark.java

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PRODUCER = "kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


def tool(main_class: str, *arguments: str, given: str = "") -> str:
    """The tool's output. Fails if its exit code is not 0."""
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    done = subprocess.run(
        java(*options, "-cp", kafka_classpath(), main_class, *arguments),
        input=given,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    return done.stdout


def test_topics(broker: BrokerProcess, topic: str) -> None:
    at = ["--bootstrap-server", broker.address, "--topic", topic]
    created = tool(TOPICS, *at, "--create", "--partitions", "3", "--config", "retention.ms=3600000")
    assert created.splitlines()[-1] == f"Created topic {topic}."
    tool(TOPICS, *at, "--alter", "--partitions", "4")
    head, *partitions = tool(TOPICS, *at, "--describe").splitlines()
    assert re.search(r"PartitionCount: 4\s+ReplicationFactor: 1\s+Configs: retention\.ms=3600000$", head)
    for number, line in enumerate(partitions):
        assert re.search(rf"Partition: {number}\s+Leader: 0\s+Replicas: 0\s+Isr: 0", line), line
    assert len(partitions) == 4
    tool(TOPICS, *at, "--delete")
    assert topic not in tool(TOPICS, "--bootstrap-server", broker.address, "--list").split()


def test_console_producer_and_consumer_and_groups(broker: BrokerProcess, topic: str) -> None:
    server = ["--bootstrap-server", broker.address]
    group = f"group-of-{topic}"
    lines = [f"{number}:value {number}" for number in range(50)]
    keyed = ["--property", "parse.key=true", "--property", "key.separator=:", "--compression-codec", "zstd"]
    tool(PRODUCER, *server, "--topic", topic, *keyed, given="\n".join(lines) + "\n")
    printed = ["--property", "print.key=true", "--property", "key.separator=:", "--max-messages", "50"]
    consumed = tool(CONSUMER, *server, "--topic", topic, "--from-beginning", "--group", group, *printed)
    assert consumed.splitlines() == lines

    described = tool(GROUPS, *server, "--describe", "--group", group)
    assert [group, topic, "0", "50", "50", "0"] in [line.split()[:6] for line in described.splitlines()]
    reset = ["--reset-offsets", "--to-offset", "20", "--topic", topic, "--execute"]
    was_reset = tool(GROUPS, *server, "--group", group, *reset)
    assert was_reset.split()[-4:] == [group, topic, "0", "20"]
    tool(GROUPS, *server, "--delete", "--group", group)
    assert group not in tool(GROUPS, *server, "--list").split()


def test_configs(broker: BrokerProcess, topic: str) -> None:
    tool(TOPICS, "--bootstrap-server", broker.address, "--create", "--topic", topic)
    entity = ["--bootstrap-server", broker.address, "--entity-type", "topics", "--entity-name", topic]
    tool(CONFIGS, *entity, "--alter", "--add-config", "cleanup.policy=compact,max.message.bytes=5000")
    described = tool(CONFIGS, *entity, "--describe")
    assert "cleanup.policy=compact sensitive=false" in described
    assert "DYNAMIC_TOPIC_CONFIG:max.message.bytes=5000, DEFAULT_CONFIG:message.max.bytes=1048588" in described


def test_performance_tools(broker: BrokerProcess, topic: str) -> None:
    load = ["--num-records", "20000", "--record-size", "100", "--throughput", "-1"]
    produced = tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *["--topic", topic, *load, "--producer-props", f"bootstrap.servers={broker.address}", "compression.type=lz4"],
    )
    assert produced.splitlines()[-1].startswith("20000 records sent, ")
    consumed = tool(
        "org.apache.kafka.tools.ConsumerPerformance",
        *["--bootstrap-server", broker.address, "--topic", topic, "--messages", "20000", "--timeout", "60000"],
    )
    assert consumed.splitlines()[-1].split(", ")[4] == "20000"


def test_offsets_log_directories_and_versions(broker: BrokerProcess, topic: str) -> None:
    server = ["--bootstrap-server", broker.address]
    tool(PRODUCER, *server, "--topic", topic, given="one\ntwo\n")
    assert tool("org.apache.kafka.tools.GetOffsetShell", *server, "--topic", topic) == f"{topic}:0:2\n"
    described = tool("org.apache.kafka.tools.LogDirsCommand", *server, "--describe", "--topic-list", topic)
    (found,) = json.loads(described.splitlines()[-1])["brokers"]
    assert [each["partition"] for each in found["logDirs"][0]["partitions"]] == [f"{topic}-0"]
    versions = tool("kafka.admin.BrokerApiVersionsCommand", *server)
    assert versions.startswith(f"{broker.address} (id: 0 rack: null) -> (\n\tProduce(0): 0 to 11 [usable: 11],")
