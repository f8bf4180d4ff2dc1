"""Formatters of the console consumer (`MessageFormatter`): records as lines, no output, or decoded records of internal
topics; values by those of Kafka's deserializers that yield text.

Formatters are selected by Kafka's class names. Those for internal topics write one JSON object for each known record,
and the old ones one line of Scala's text. Kafka 3.9 omits the line ends between its JSON objects.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from protocol.errors import DecodeError
from protocol.messages.group_records import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from protocol.records.batch import Record, TimestampType
from protocol.wire.schema import Message
from tools.support.common import ToolError
from tools.support.message_json import json_text, message_to_json

Deserializer = Callable[[bytes], bytes]
"""Converts the bytes of a field to the UTF-8 text to show. Raises ValueError for invalid bytes."""

_PACKAGE = "org.apache.kafka.common.serialization."


def _number(name: str, layout: str) -> Deserializer:
    number = struct.Struct(layout)

    def deserialize(data: bytes) -> bytes:
        if len(data) != number.size:
            raise ValueError(f"Size of data received by {name} is not {number.size}")
        return str(number.unpack(data)[0]).encode()

    return deserialize


def _boolean(data: bytes) -> bytes:
    if data not in {b"\0", b"\1"}:
        raise ValueError("Unexpected byte received by BooleanDeserializer")
    return b"true" if data == b"\1" else b"false"


DESERIALIZERS: dict[str, Deserializer] = {
    _PACKAGE + "StringDeserializer": lambda data: data.decode("utf-8", "replace").encode(),
    _PACKAGE + "UUIDDeserializer": lambda data: data,
    _PACKAGE + "ShortDeserializer": _number("ShortDeserializer", ">h"),
    _PACKAGE + "IntegerDeserializer": _number("IntegerDeserializer", ">i"),
    _PACKAGE + "LongDeserializer": _number("LongDeserializer", ">q"),
    _PACKAGE + "FloatDeserializer": _number("FloatDeserializer", ">f"),
    _PACKAGE + "DoubleDeserializer": _number("DoubleDeserializer", ">d"),
    _PACKAGE + "BooleanDeserializer": _boolean,
    # Java shows the address of these; their contents are more useful.
    _PACKAGE + "ByteArrayDeserializer": lambda data: data,
    _PACKAGE + "BytesDeserializer": lambda data: data,
    _PACKAGE + "ByteBufferDeserializer": lambda data: data,
}


logger = logging.getLogger("org.apache.kafka.tools.consumer.DefaultMessageFormatter")

Properties = Mapping[str, str]


class Formatter(Protocol):
    """Formats records."""

    def format(self, record: Record, partition: int, timestamp_type: TimestampType) -> bytes:
        """The bytes to write for `record`. Raises ValueError if it cannot be shown."""
        ...


class DefaultFormatter:
    """Timestamp, partition, offset, headers, key and value, as selected, in this order."""

    def __init__(self, properties: Properties) -> None:
        self._timestamp = _flag(properties, "print.timestamp", False)
        self._partition = _flag(properties, "print.partition", False)
        self._offset = _flag(properties, "print.offset", False)
        self._headers = _flag(properties, "print.headers", False)
        self._key = _flag(properties, "print.key", False)
        self._value = _flag(properties, "print.value", True)
        self._separator = properties.get("key.separator", "\t").encode()
        self._line_end = properties.get("line.separator", "\n").encode()
        self._header_separator = properties.get("headers.separator", ",").encode()
        self._null = properties.get("null.literal", "null").encode()
        self._deserialize_key = _deserializer(properties, "key.deserializer")
        self._deserialize_value = _deserializer(properties, "value.deserializer")
        self._deserialize_header = _deserializer(properties, "headers.deserializer")

    def format(self, record: Record, partition: int, timestamp_type: TimestampType) -> bytes:
        """See `Formatter`."""
        fields = []
        if self._timestamp:
            name = "CreateTime" if timestamp_type == TimestampType.CREATE_TIME else "LogAppendTime"
            fields.append(f"{name}:{record.timestamp}".encode() if record.timestamp >= 0 else b"NO_TIMESTAMP")
        if self._partition:
            fields.append(b"Partition:%d" % partition)
        if self._offset:
            fields.append(b"Offset:%d" % record.offset)
        if self._headers:
            shown = [key.encode() + b":" + self._show(value, self._deserialize_header) for key, value in record.headers]
            fields.append(self._header_separator.join(shown) if shown else b"NO_HEADERS")
        if self._key:
            fields.append(self._show(record.key, self._deserialize_key))
        if self._value:
            fields.append(self._show(record.value, self._deserialize_value))
        return self._separator.join(fields) + self._line_end if fields else b""

    def _show(self, data: bytes | None, deserialize: Deserializer | None) -> bytes:
        if data is None:
            return self._null
        return data if deserialize is None else deserialize(data)


class NoOpFormatter:
    """Shows nothing."""

    def __init__(self, properties: Properties) -> None:
        del properties

    def format(self, record: Record, partition: int, timestamp_type: TimestampType) -> bytes:
        """See `Formatter`."""
        del record, partition, timestamp_type
        return b""


def _flag(properties: Properties, name: str, default: bool) -> bool:
    text = properties.get(name)
    return default if text is None else text.strip().lower() == "true"


def _deserializer(properties: Properties, name: str) -> Deserializer | None:
    class_name = properties.get(name)
    if class_name is None:
        return None
    found = DESERIALIZERS.get(class_name)
    if found is None:
        logger.error("Unable to instantiate a deserializer from %s", class_name)
    return found


# -- __consumer_offsets ------------------------------------------------------------------------------------------------


class _GroupRecordFormatter:
    """Shows one kind of record of `__consumer_offsets`, and ignores the others."""

    key_types: Mapping[int, type[Message]] = {}
    value_type: type[Message]

    def __init__(self, properties: Properties) -> None:
        del properties

    def format(self, record: Record, partition: int, timestamp_type: TimestampType) -> bytes:
        """See `Formatter`."""
        del partition, timestamp_type
        key_version = _version_of(record.key)
        if record.key is None or key_version is None or key_version not in self.key_types:
            return b""
        try:
            key = _decode(self.key_types[key_version], record.key, key_version)
            value_version = _version_of(record.value)
            value = None
            if record.value is not None and value_version is not None:
                value = _decode(self.value_type, record.value, value_version)
        except DecodeError as error:
            raise ValueError(str(error)) from error
        return self.show(key, key_version, value, value_version or 0)

    def show(self, key: Message, key_version: int, value: Message | None, value_version: int) -> bytes:
        """One JSON object and a line end."""
        return (
            json_text(
                {
                    "key": {"version": key_version, "data": message_to_json(key, key_version)},
                    "value": None
                    if value is None
                    else {"version": value_version, "data": message_to_json(value, value_version)},
                }
            ).encode()
            + b"\n"
        )


def _version_of(data: bytes | None) -> int | None:
    return None if data is None or len(data) < 2 else int.from_bytes(data[:2], "big", signed=True)


def _decode(message_type: type[Message], data: bytes, version: int) -> Message:
    if not message_type.min_version <= version <= message_type.max_version:
        raise ValueError(f"{message_type.__name__} has no version {version}")
    return message_type.decode_prefix(memoryview(data)[2:], version)[0]


class OffsetsFormatter(_GroupRecordFormatter):
    """Committed offsets."""

    key_types = {0: OffsetCommitKey, 1: OffsetCommitKey}
    value_type = OffsetCommitValue


class GroupMetadataFormatter(_GroupRecordFormatter):
    """Groups with their members."""

    key_types = {2: GroupMetadataKey}
    value_type = GroupMetadataValue


class OldOffsetsFormatter(OffsetsFormatter):
    """Committed offsets in the text format of Kafka's formatter up to 3.8."""

    def show(self, key: Message, key_version: int, value: Message | None, value_version: int) -> bytes:
        """One line."""
        del key_version, value_version
        assert isinstance(key, OffsetCommitKey)
        shown = "NULL"
        if isinstance(value, OffsetCommitValue):
            epoch = f"Optional[{value.leader_epoch}]" if value.leader_epoch >= 0 else "Optional.empty"
            expires = f"Some({value.expire_timestamp})" if value.expire_timestamp >= 0 else "None"
            shown = (
                f"OffsetAndMetadata(offset={value.offset}, leaderEpoch={epoch}, metadata={value.metadata}, "
                f"commitTimestamp={value.commit_timestamp}, expireTimestamp={expires})"
            )
        return f"[{key.group},{key.topic},{key.partition}]::{shown}\n".encode()


class OldGroupMetadataFormatter(GroupMetadataFormatter):
    """Groups in the text format of Kafka's formatter up to 3.8."""

    def show(self, key: Message, key_version: int, value: Message | None, value_version: int) -> bytes:
        """One line."""
        del key_version, value_version
        assert isinstance(key, GroupMetadataKey)
        shown = "NULL"
        if isinstance(value, GroupMetadataValue):
            members = ", ".join(
                f"{member.member_id} -> MemberMetadata(memberId={member.member_id}, "
                f"groupInstanceId={_some(member.group_instance_id)}, clientId={member.client_id}, "
                f"clientHost={member.client_host}, sessionTimeoutMs={member.session_timeout}, "
                f"rebalanceTimeoutMs={member.rebalance_timeout}, supportedProtocols=List({value.protocol}))"
                for member in value.members
            )
            shown = (
                f"GroupMetadata(groupId={key.group}, generation={value.generation}, "
                f"protocolType={_some(value.protocol_type)}, currentState={'Stable' if value.members else 'Empty'}, "
                f"members=HashMap({members}))"
            )
        return f"{key.group}::{shown}\n".encode()


def _some(text: str | None) -> str:
    return "None" if not text else f"Some({text})"


# -- by class name -----------------------------------------------------------------------------------------------------

_NEW_PACKAGE: Final = "org.apache.kafka.tools.consumer."
DEFAULT_FORMATTER: Final = _NEW_PACKAGE + "DefaultMessageFormatter"

_FORMATTERS: Final[dict[str, Callable[[Properties], Formatter]]] = {
    DEFAULT_FORMATTER: DefaultFormatter,
    # Kafka's also writes to its log, which by default does not show it.
    _NEW_PACKAGE + "LoggingMessageFormatter": DefaultFormatter,
    _NEW_PACKAGE + "NoOpMessageFormatter": NoOpFormatter,
    _NEW_PACKAGE + "OffsetsMessageFormatter": OffsetsFormatter,
    _NEW_PACKAGE + "GroupMetadataMessageFormatter": GroupMetadataFormatter,
}
_OLD_FORMATTERS: Final[dict[str, tuple[str, Callable[[Properties], Formatter]]]] = {
    "kafka.tools.DefaultMessageFormatter": ("DefaultMessageFormatter", DefaultFormatter),
    "kafka.tools.LoggingMessageFormatter": ("LoggingMessageFormatter", DefaultFormatter),
    "kafka.tools.NoOpMessageFormatter": ("NoOpMessageFormatter", NoOpFormatter),
    "kafka.coordinator.group.GroupMetadataManager$OffsetsMessageFormatter": (
        "OffsetsMessageFormatter",
        OldOffsetsFormatter,
    ),
    "kafka.coordinator.group.GroupMetadataManager$GroupMetadataMessageFormatter": (
        "GroupMetadataMessageFormatter",
        OldGroupMetadataFormatter,
    ),
}


def make_formatter(class_name: str, properties: Properties, warn: Callable[[str], None]) -> Formatter:
    """The formatter for Kafka's `class_name`; passes a warning about a deprecated name to `warn`. Raises ToolError."""
    if class_name in _OLD_FORMATTERS:
        new_name, old = _OLD_FORMATTERS[class_name]
        warn(
            f"WARNING: {class_name} is deprecated and will be removed in the next major release. "
            f"Please use {_NEW_PACKAGE}{new_name} instead"
        )
        return old(properties)
    make = _FORMATTERS.get(class_name)
    if make is None:
        raise ToolError(class_name)
    return make(properties)
