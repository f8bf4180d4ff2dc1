"""Settings under Kafka's names: defaults, errors in Kafka's words, and no insecure surprises."""

from __future__ import annotations

import pytest

from client.errors import SettingsError
from client.settings import ClientSettings, ConsumerSettings, ProducerSettings
from protocol.records.batch import CompressionType


def test_addresses() -> None:
    settings = ClientSettings.parse({"bootstrap.servers": " a:1, [::1]:2 ,b.example:65535"})
    assert settings.bootstrap_servers == (("a", 1), ("::1", 2), ("b.example", 65535))


@pytest.mark.parametrize("text", ["a", "a:b", ":1", "a:70000", ""])
def test_bad_addresses_are_named(text: str) -> None:
    with pytest.raises(SettingsError, match=r"bootstrap\.servers"):
        ClientSettings.parse({"bootstrap.servers": text})


def test_no_security_is_pretended() -> None:
    with pytest.raises(SettingsError, match=r"sasl\.jaas\.config: it must look like com\.sun\.security\.auth\.module"):
        ClientSettings.parse({"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL"})
    with pytest.raises(SettingsError, match=r"Invalid value X for configuration sasl\.mechanism"):
        ClientSettings.parse({"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "X"})
    with pytest.raises(SettingsError, match=r"ssl\.provider=BC is not supported"):
        ClientSettings.parse({"bootstrap.servers": "a:1", "security.protocol": "SSL", "ssl.provider": "BC"})


def test_producers_are_idempotent_unless_something_else_was_asked_for() -> None:
    assert ProducerSettings.parse({}).enable_idempotence
    assert not ProducerSettings.parse({"acks": "1"}).enable_idempotence
    assert not ProducerSettings.parse({"retries": "0"}).enable_idempotence
    with pytest.raises(SettingsError, match="Must set acks to all"):
        ProducerSettings.parse({"acks": "0", "enable.idempotence": "true"})


def test_transactions_need_idempotence() -> None:
    settings = ProducerSettings.parse({"transactional.id": "t"})
    assert (settings.transactional_id, settings.transaction_timeout_ms) == ("t", 60_000)
    for others in ({"acks": "1"}, {"retries": "0"}, {"enable.idempotence": "false"}):
        with pytest.raises(SettingsError, match=r"Cannot set a transactional\.id without also enabling idempotence"):
            ProducerSettings.parse({"transactional.id": "t", **others})
    with pytest.raises(SettingsError, match="String must be non-empty"):
        ProducerSettings.parse({"transactional.id": ""})


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("acks", "2", "String must be one of: all, -1, 0, 1"),
        ("batch.size", "x", "Not a number of type INT"),
        ("linger.ms", "x", "Not a number of type LONG"),
        ("batch.size", "-1", "Value must be at least 0"),
        ("batch.size", "3000000000", "Not a number of type INT"),
        ("enable.idempotence", "maybe", "Expected value to be either true or false"),
        ("compression.type", "brotli", "String must be one of: none, gzip, snappy, lz4, zstd"),
    ],
)
def test_errors_name_key_value_and_what_is_allowed(name: str, value: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=rf"Invalid value {value} for configuration {name}: {reason}"):
        ProducerSettings.parse({name: value})


def test_compression_with_a_level() -> None:
    settings = ProducerSettings.parse({"compression.type": "zstd", "compression.zstd.level": "7"})
    assert (settings.compression, settings.compression_level) == (CompressionType.ZSTD, 7)


def test_assignors_by_class_name() -> None:
    package = "org.apache.kafka.clients.consumer"
    given = f"{package}.CooperativeStickyAssignor, {package}.RoundRobinAssignor"
    settings = ConsumerSettings.parse({"partition.assignment.strategy": given})
    assert settings.assignors == ("cooperative-sticky", "roundrobin")
    with pytest.raises(SettingsError, match="must be one of"):
        ConsumerSettings.parse({"partition.assignment.strategy": "my.own.Assignor"})


def test_auto_commit_needs_a_group() -> None:
    assert not ConsumerSettings.parse({}).enable_auto_commit
    assert ConsumerSettings.parse({"group.id": "g"}).enable_auto_commit
