"""Decoders of keys and values for dump_log: of plain types, and of records in Kafka's internal topics."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from protocol.errors import ApiError, DecodeError
from protocol.messages.group_records import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from protocol.messages.groups import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from protocol.messages.transactions import TransactionLogKey, TransactionLogValue
from protocol.records.batch import Record
from protocol.wire.schema import Message
from tools.support.message_json import json_text, message_to_json
from tools.support.options import OptionError


class Decoded(NamedTuple):
    """The text shown for a record; a part that is None is not shown."""

    key: str | None
    payload: str | None


class UndecodableError(Exception):
    """A record that stops the dump; the message says which and why."""


M = TypeVar("M", bound=Message)
RecordDecoder = Callable[[Record], Decoded]

_VERSION = struct.Struct(">h")
_DELETED: Final = "<DELETE>"


def _read_version(data: bytes) -> int | None:
    return _VERSION.unpack_from(data)[0] if len(data) >= _VERSION.size else None


# -- plain types -----------------------------------------------------------------------------------------------------


def _decode_string(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _number_decoder(form: str) -> Callable[[bytes], str]:
    layout = struct.Struct(form)

    def decode(data: bytes) -> str:
        if len(data) < layout.size:
            raise UndecodableError(f"{len(data)} bytes are too few for a number of {layout.size} bytes: {data.hex()}")
        return str(layout.unpack_from(data)[0])

    return decode


_PACKAGE: Final = "org.apache.kafka.tools.api."
_OLD_PACKAGE: Final = "kafka.serializer."
_DECODERS: Final[dict[str, Callable[[bytes], str]]] = {
    "StringDecoder": _decode_string,
    "IntegerDecoder": _number_decoder(">i"),
    "LongDecoder": _number_decoder(">q"),
    "DefaultDecoder": bytes.hex,  # Kafka's returns a Java byte array, which prints as an address
}


def find_decoder(class_name: str, say: Callable[[str], None]) -> Callable[[bytes], str]:
    """The decoder for Kafka's `class_name`; passes a warning about a deprecated name to `say`. Raises OptionError."""
    for package in (_PACKAGE, _OLD_PACKAGE):
        decoder = _DECODERS.get(class_name.removeprefix(package)) if class_name.startswith(package) else None
        if decoder is not None:
            if package == _OLD_PACKAGE:
                better = _PACKAGE + class_name.removeprefix(_OLD_PACKAGE)
                say(f"{class_name} is deprecated. Please use {better} instead")
            return decoder
    known = ", ".join(_PACKAGE + name for name in _DECODERS)
    raise OptionError(f"Unknown decoder class {class_name!r}; there are: {known}")


def plain_decoder(decode_key: Callable[[bytes], str], decode_value: Callable[[bytes], str]) -> RecordDecoder:
    """A decoder from one each for key and value."""

    def decode(record: Record) -> Decoded:
        key, value = record.key, record.value
        return Decoded(None if key is None else decode_key(key), None if value is None else decode_value(value))

    return decode


# -- __consumer_offsets ----------------------------------------------------------------------------------------------

_GROUP_RECORDS: Final[dict[int, tuple[type[Message], type[Message]]]] = {
    0: (OffsetCommitKey, OffsetCommitValue),
    1: (OffsetCommitKey, OffsetCommitValue),
    2: (GroupMetadataKey, GroupMetadataValue),
}


class _SkippedError(Exception):
    """A record of an internal topic that cannot be decoded and is skipped."""


def decode_group_record(record: Record) -> Decoded:
    """Decode a record of `__consumer_offsets`. Raises UndecodableError for one without a key."""
    if record.key is None:
        raise UndecodableError(
            f"Failed to decode message at offset {record.offset} using offset topic decoder (message had a missing key)"
        )
    try:
        kind = _read_version(record.key)
        if kind is None:
            raise _SkippedError("Could not read version from key's buffer.")
        if kind not in _GROUP_RECORDS:
            return Decoded(f"Unknown record type {kind} at offset {record.offset}, skipping.", None)
        key_type, value_type = _GROUP_RECORDS[kind]
        key = _read_message(key_type, record.key, kind, "key")
        shown = json_text({"type": str(kind), "data": message_to_json(key, kind)})
        if record.value is None:
            return Decoded(shown, _DELETED)
        version = _read_version(record.value)
        if version is None:
            raise _SkippedError("Could not read version from value's buffer.")
        value = _read_message(value_type, record.value, version, "value")
    except _SkippedError as error:
        return Decoded(f"Error at offset {record.offset}, skipping. {error}", None)
    data = message_to_json(value, version)
    if isinstance(value, GroupMetadataValue) and value.protocol_type == "consumer":
        for member, member_data in zip(value.members, data["members"], strict=True):
            _open_blob(member_data, "subscription", ConsumerProtocolSubscription, member.subscription)
            _open_blob(member_data, "assignment", ConsumerProtocolAssignment, member.assignment)
    return Decoded(shown, json_text({"version": str(version), "data": data}))


def _read_message(message_type: type[Message], data: bytes, version: int, what: str) -> Message:
    try:
        return message_type.decode_prefix(memoryview(data)[_VERSION.size :], version)[0]
    except (DecodeError, ApiError) as error:
        why = error.reason if isinstance(error, DecodeError) else error.message
        raise _SkippedError(
            f"Could not read record with version {version} from {what}'s buffer due to: {why}."
        ) from error


def _open_blob(data: dict[str, Any], name: str, message_type: type[Message], blob: bytes) -> None:
    """Show the contents of `blob` if they can be decoded, else leave the bytes."""
    version = _read_version(blob)
    if version is None:
        return
    try:
        message, _ = message_type.decode_prefix(memoryview(blob)[_VERSION.size :], version)
    except (DecodeError, ApiError):
        return
    data[name] = message_to_json(message, version)


# -- __transaction_state ---------------------------------------------------------------------------------------------

_TRANSACTION_STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


def decode_transaction_record(record: Record) -> Decoded:
    """Decode a record of `__transaction_state`. Raises UndecodableError for an invalid one."""
    kind = None if record.key is None else _read_version(record.key)
    if record.key is None or kind is None:
        raise UndecodableError(f"The record at offset {record.offset} has no key of a transaction")
    if kind != 0:
        return Decoded(f"unknown::version={kind}", None)
    key = _read_transaction(TransactionLogKey, record.key, kind, record.offset)
    shown = f"transaction_metadata::transactionalId={key.transactional_id}"
    if record.value is None:
        return Decoded(shown, _DELETED)
    version = _read_version(record.value)
    if version is None or not 0 <= version <= TransactionLogValue.max_version:
        raise UndecodableError(
            f"Unknown version {version} from the transaction log message value at offset {record.offset}"
        )
    value = _read_transaction(TransactionLogValue, record.value, version, record.offset)
    if not 0 <= value.transaction_status < len(_TRANSACTION_STATES):
        raise UndecodableError(
            f"Unknown transaction state id {value.transaction_status} from the transaction status message "
            f"at offset {record.offset}"
        )
    state = _TRANSACTION_STATES[value.transaction_status]
    topics = [] if state == "Empty" else value.transaction_partitions or []
    # Kafka's order is that of a hash table; this one is by name
    partitions = ",".join(
        f"{topic}-{partition}"
        for topic, partition in sorted({(at.topic, one) for at in topics for one in at.partition_ids})
    )
    return Decoded(
        shown,
        f"producerId:{value.producer_id},producerEpoch:{value.producer_epoch},state={state},partitions=[{partitions}],"
        f"txnLastUpdateTimestamp={value.transaction_last_update_timestamp_ms},"
        f"txnTimeoutMs={value.transaction_timeout_ms}",
    )


def _read_transaction(message_type: type[M], data: bytes, version: int, offset: int) -> M:
    try:
        return message_type.decode_prefix(memoryview(data)[_VERSION.size :], version)[0]
    except DecodeError as error:
        raise UndecodableError(f"The record at offset {offset} cannot be read: {error}") from error
