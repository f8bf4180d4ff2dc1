"""Settings of the client, with Kafka's names and defaults (Kafka classes `AdminClientConfig`, `ProducerConfig`,
`ConsumerConfig`).

Keys without a meaning here (serializers, metrics, thread buffers) are accepted and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Self

from client.errors import SettingsError
from protocol.records.compression import CompressionType
from protocol.value import Value

if TYPE_CHECKING:
    from security.channel_config import ChannelConfig

MAX_FRAME_BYTES: Final = 1 << 30
"""The largest accepted response: larger than any response to the fetch sizes used here."""

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class Properties:
    """String settings with typed access."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def text(self, name: str, default: str) -> str:
        """The string value of `name`."""
        return self._values.get(name, default)

    def number(self, name: str, default: int, low: int = 0, high: int = _INT32_MAX) -> int:
        """The integer value of `name`. Raises SettingsError for other text, and outside `low` to `high`."""
        text = self.text(name, str(default)).strip()
        kind = "INT" if high <= _INT32_MAX else "LONG"
        try:
            value = int(text)
        except ValueError:
            raise SettingsError(f"Invalid value {text} for configuration {name}: Not a number of type {kind}") from None
        if value < low:
            raise SettingsError(f"Invalid value {value} for configuration {name}: Value must be at least {low}")
        if value > high:
            raise SettingsError(f"Invalid value {text} for configuration {name}: Not a number of type {kind}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """The boolean value of `name`. Raises SettingsError for anything but true and false."""
        text = self.text(name, str(default)).strip()
        if text.lower() not in {"true", "false"}:
            raise SettingsError(
                f"Invalid value {text} for configuration {name}: Expected value to be either true or false"
            )
        return text.lower() == "true"

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        """The value of `name` in lower case. Raises SettingsError unless it is one of `allowed`."""
        text = self.text(name, default)
        if text.lower() not in allowed:
            raise SettingsError(
                f"Invalid value {text} for configuration {name}: String must be one of: {', '.join(allowed)}"
            )
        return text.lower()


class ClientSettings(Value):
    """Settings of every client. Times are in milliseconds."""

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str
    request_timeout_ms: int
    default_api_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    connection_setup_timeout_ms: int
    metadata_max_age_ms: int
    channel: ChannelConfig | None = None
    """TLS and SASL, or None for plain text."""
    bootstrap_timeout_ms: int | None = None
    """How long to look for a broker until a bootstrap server first responds, or None for the timeout of each call."""

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Parse settings with Kafka's names. Raises SettingsError."""
        properties = Properties(values)
        protocol = properties.choice(
            "security.protocol", "PLAINTEXT", ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
        )
        return cls(
            bootstrap_servers=parse_addresses(properties.text("bootstrap.servers", "")),
            client_id=properties.text("client.id", ""),
            request_timeout_ms=properties.number("request.timeout.ms", 30_000),
            default_api_timeout_ms=properties.number("default.api.timeout.ms", 60_000),
            retry_backoff_ms=properties.number("retry.backoff.ms", 100),
            retry_backoff_max_ms=properties.number("retry.backoff.max.ms", 1_000),
            connection_setup_timeout_ms=properties.number("socket.connection.setup.timeout.ms", 10_000),
            metadata_max_age_ms=properties.number("metadata.max.age.ms", 300_000),
            channel=None if protocol == "plaintext" else _channel(protocol.upper(), values),
        )


def _channel(protocol: str, values: Mapping[str, str]) -> ChannelConfig:
    from config.definitions import ConfigError
    from security.channel_config import client_channel

    try:
        return client_channel(protocol, values)
    except ConfigError as error:
        raise SettingsError(str(error)) from error


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """`host:port` pairs separated by commas; IPv6 hosts are in brackets. Raises SettingsError, naming the invalid
    one.
    """
    addresses = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        host, colon, port = part.rpartition(":")
        if not colon or not host or not port.isdigit() or int(port) > 0xFFFF:
            raise SettingsError(f"Invalid url in bootstrap.servers: {part}")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    if not addresses:
        raise SettingsError("No resolvable bootstrap urls given in bootstrap.servers")
    return tuple(addresses)


_LEVEL_DEFAULTS: Final = {"gzip": -1, "lz4": 9, "zstd": 3}


class ProducerSettings(Value):
    """Settings of a producer; see `ClientSettings` for the rest. `acks` is 0, 1 or -1 (all)."""

    acks: int
    batch_size_bytes: int
    linger_ms: int
    compression: CompressionType
    compression_level: int | None
    enable_idempotence: bool
    retries: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    max_block_ms: int
    max_request_bytes: int
    buffer_memory_bytes: int
    max_in_flight_requests: int
    transactional_id: str | None
    transaction_timeout_ms: int

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Parse settings with Kafka's names. Raises SettingsError."""
        properties = Properties(values)
        acks_text = properties.choice("acks", "all", ("all", "-1", "0", "1"))
        acks = -1 if acks_text == "all" else int(acks_text)
        name = properties.choice("compression.type", "none", ("none", "gzip", "snappy", "lz4", "zstd"))
        level = None
        if name in _LEVEL_DEFAULTS and f"compression.{name}.level" in values:
            level = properties.number(f"compression.{name}.level", _LEVEL_DEFAULTS[name], low=-131_072)
        retries = properties.number("retries", _INT32_MAX)
        in_flight = properties.number("max.in.flight.requests.per.connection", 5, low=1)
        idempotence = _idempotence(properties, values, acks, retries, in_flight)
        return cls(
            acks=acks,
            batch_size_bytes=properties.number("batch.size", 16_384),
            linger_ms=properties.number("linger.ms", 0, high=_INT64_MAX),
            compression=CompressionType[name.upper()],
            compression_level=level,
            enable_idempotence=idempotence,
            retries=retries,
            delivery_timeout_ms=properties.number("delivery.timeout.ms", 120_000),
            request_timeout_ms=properties.number("request.timeout.ms", 30_000),
            max_block_ms=properties.number("max.block.ms", 60_000, high=_INT64_MAX),
            max_request_bytes=properties.number("max.request.size", 1_048_576),
            buffer_memory_bytes=properties.number("buffer.memory", 33_554_432, high=_INT64_MAX),
            max_in_flight_requests=in_flight,
            transactional_id=_transactional_id(values, idempotence),
            transaction_timeout_ms=properties.number("transaction.timeout.ms", 60_000, low=-_INT32_MAX - 1),
        )


def _transactional_id(values: Mapping[str, str], idempotence: bool) -> str | None:
    transactional_id = values.get("transactional.id")
    if transactional_id == "":
        raise SettingsError("Invalid value  for configuration transactional.id: String must be non-empty")
    if transactional_id is not None and not idempotence:
        raise SettingsError("Cannot set a transactional.id without also enabling idempotence.")
    return transactional_id


def _idempotence(properties: Properties, values: Mapping[str, str], acks: int, retries: int, in_flight: int) -> bool:
    """Kafka's rule (KIP-679): enabled unless a conflicting setting was set. Raises SettingsError if enabled explicitly
    despite a conflict.
    """
    wanted = properties.flag("enable.idempotence", True)
    asked_for = "enable.idempotence" in values
    problems = (
        (acks != -1, "Must set acks to all in order to use the idempotent producer."),
        (retries == 0, "Must set retries to non-zero when using the idempotent producer."),
        (in_flight > 5, "Must set max.in.flight.requests.per.connection to at most 5 to use the idempotent producer."),
    )
    for is_problem, message in problems:
        if is_problem and wanted:
            if asked_for:
                raise SettingsError(message)
            return False
    return wanted


class ConsumerSettings(Value):
    """Settings of a consumer; see `ClientSettings` for the rest. `assignors` are the names used in JoinGroup."""

    group_id: str | None
    group_instance_id: str | None
    auto_offset_reset: str
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    isolation_level: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    assignors: tuple[str, ...]
    allow_auto_create_topics: bool
    exclude_internal_topics: bool
    check_crcs: bool
    client_rack: str

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Parse settings with Kafka's names. Raises SettingsError."""
        properties = Properties(values)
        group_protocol = properties.choice("group.protocol", "classic", ("classic", "consumer"))
        if group_protocol != "classic":
            raise SettingsError(
                "Invalid value consumer for configuration group.protocol: only classic is supported yet"
            )
        isolation = properties.choice("isolation.level", "read_uncommitted", ("read_committed", "read_uncommitted"))
        group_id = properties.text("group.id", "") or None
        return cls(
            group_id=group_id,
            group_instance_id=properties.text("group.instance.id", "") or None,
            auto_offset_reset=properties.choice("auto.offset.reset", "latest", ("latest", "earliest", "none")),
            enable_auto_commit=properties.flag("enable.auto.commit", group_id is not None),
            auto_commit_interval_ms=properties.number("auto.commit.interval.ms", 5_000),
            fetch_min_bytes=properties.number("fetch.min.bytes", 1),
            fetch_max_wait_ms=properties.number("fetch.max.wait.ms", 500),
            fetch_max_bytes=properties.number("fetch.max.bytes", 52_428_800),
            max_partition_fetch_bytes=properties.number("max.partition.fetch.bytes", 1_048_576),
            max_poll_records=properties.number("max.poll.records", 500, low=1),
            isolation_level=int(isolation == "read_committed"),
            session_timeout_ms=properties.number("session.timeout.ms", 45_000),
            heartbeat_interval_ms=properties.number("heartbeat.interval.ms", 3_000),
            max_poll_interval_ms=properties.number("max.poll.interval.ms", 300_000, low=1),
            assignors=_assignors(properties),
            allow_auto_create_topics=properties.flag("allow.auto.create.topics", True),
            exclude_internal_topics=properties.flag("exclude.internal.topics", True),
            check_crcs=properties.flag("check.crcs", True),
            client_rack=properties.text("client.rack", ""),
        )


_ASSIGNOR_CLASSES: Final = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}


def _assignors(properties: Properties) -> tuple[str, ...]:
    """Assignors by Kafka's class names, or by their names on the wire."""
    given = properties.text("partition.assignment.strategy", "range,cooperative-sticky")
    names = []
    for part in (part.strip() for part in given.split(",") if part.strip()):
        name = _ASSIGNOR_CLASSES.get(part, part)
        if name not in _ASSIGNOR_CLASSES.values():
            raise SettingsError(
                f"Invalid value {part} for configuration partition.assignment.strategy: "
                f"must be one of: {', '.join(_ASSIGNOR_CLASSES)}"
            )
        names.append(name)
    if not names:
        raise SettingsError("Invalid value for configuration partition.assignment.strategy: it must not be empty")
    return tuple(names)
