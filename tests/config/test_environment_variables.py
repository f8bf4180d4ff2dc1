"""Keys from `KAFKA_*` variables: the rules of Apache Kafka's container image, compared with the original."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from config.definitions import ConfigError
from config.environment_variables import keys_of, logger_levels
from config.properties import load_properties
from tests.kit.jars import java, kafka_classpath

LEVELS = ("DEBUG", "INFO", "WARN")

VARIABLES = {
    "KAFKA_BROKER_ID": "7",
    "KAFKA_ADVERTISED_LISTENERS": "INTERNAL://broker-7:9093,EXTERNAL://localhost:9092",
    "KAFKA_LISTENER_NAME_SASL__SSL_SSL_KEYSTORE_TYPE": "PKCS12",
    "KAFKA_LISTENER_NAME_SASL__PLAIN_SCRAM___SHA___512_SASL_JAAS_CONFIG": 'required username="u";',
    "KAFKA_NO____KEY_____AT_ALL": "dashes and underscores",
    "KAFKA_LOG_DIRS": "C:\\\\logs\\u0041",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "",
    "KAFKA_TWO_LINES": "one\nlog.cleaner.threads=2",
    "KAFKA_OF_KAFKA_TWICE": "x",
    "KAFKA_lower_Case": "x",
    "KAFKA_JMX_PORT": "9999",
    **{
        f"KAFKA_{name}": "not a key"
        for name in (
            *("VERSION", "HEAP_OPTS", "LOG4J_OPTS", "OPTS", "JMX_OPTS", "JVM_PERFORMANCE_OPTS", "GC_LOG_OPTS"),
            "JMX_HOSTNAME",
        )
    },
    "KAFKA_LOG4J_ROOT_LOGLEVEL": "WARN",
    "KAFKA_LOG4J_LOGGERS": "kafka.controller=DEBUG",
    "KAFKA_TOOLS_LOG4J_LOGLEVEL": "WARN",
    "NOT_KAFKA_NUM_PARTITIONS": "3",
}


def test_names_of_variables() -> None:
    keys = keys_of(VARIABLES)
    assert keys["broker.id"] == "7"
    assert keys["listener.name.sasl_ssl.ssl.keystore.type"] == "PKCS12"
    assert keys["listener.name.sasl_plain.scram-sha-512.sasl.jaas.config"] == 'required username="u";'
    assert keys["log.dirs"] == "C:\\logsA"
    assert keys["log.cleaner.threads"] == "2"
    assert "jmx.port" in keys
    assert not {"heap.opts", "log4j.loggers", "version", "not.kafka.num.partitions"} & keys.keys()


def test_an_escape_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"log\.dirs=C:\\users.*four hexadecimal digits"):
        keys_of({"KAFKA_LOG_DIRS": "C:\\users"})


def test_levels_of_loggers() -> None:
    variables = {"KAFKA_LOG4J_ROOT_LOGLEVEL": "warn", "KAFKA_LOG4J_LOGGERS": "kafka.controller=DEBUG, kafka = INFO,"}
    assert logger_levels(variables, LEVELS) == {"root": "WARN", "kafka.controller": "DEBUG", "kafka": "INFO"}
    assert logger_levels({"KAFKA_LOG4J_ROOT_LOGLEVEL": "", "KAFKA_NUM_PARTITIONS": "3"}, LEVELS) == {}


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("KAFKA_LOG4J_ROOT_LOGLEVEL", "LOUD"),
        ("KAFKA_LOG4J_LOGGERS", "kafka.controller"),
        ("KAFKA_LOG4J_LOGGERS", "=INFO"),
        ("KAFKA_LOG4J_LOGGERS", "kafka=INFO,kafka.controller=LOUD"),
    ],
)
def test_what_is_no_level_is_named(variable: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"{text} for configuration {variable}: .* one of DEBUG, INFO, WARN"):
        logger_levels({variable: text}, LEVELS)


@pytest.mark.java
@pytest.mark.parametrize("mounted", [None, "broker.id=1\nnum.io.threads=3\n"])
@pytest.mark.parametrize("variables", [VARIABLES, {"KAFKA_HEAP_OPTS": "-Xmx1G"}], ids=["keys", "no keys"])
def test_apache_reads_the_same(variables: dict[str, str], mounted: str | None, tmp_path: Path) -> None:
    """Its defaults apply if there are neither variables nor a mounted file."""
    for name in ("default", "mounted", "final"):
        (tmp_path / name).mkdir()
    for name in ("server.properties", "log4j.properties", "tools-log4j.properties"):
        (tmp_path / "default" / name).write_text("default=1\n")
    if mounted is not None:
        (tmp_path / "mounted" / "server.properties").write_text(mounted)
    directories = [f"--{name}-configs-dir={tmp_path / name}" for name in ("default", "mounted", "final")]
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("KAFKA_")}
    command = java("-cp", kafka_classpath(), "kafka.docker.KafkaDockerWrapper", "setup", *directories)
    # Afterwards it tries to format directories for KRaft, which fails for lack of KRaft keys.
    done = subprocess.run(command, env={**inherited, **variables}, capture_output=True, text=True, check=False)
    final = tmp_path / "final" / "server.properties"
    assert final.exists(), done.stderr
    ours = {**load_properties((mounted or "").encode()), **keys_of(variables)} or {"default": "1"}
    assert load_properties(final.read_bytes()) == ours
