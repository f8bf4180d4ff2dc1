"""Answers as plain values, to compare two brokers: only ids, times and ports are masked."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import RecordBatch, TimestampType, read_batches
from protocol.uuids import ZERO_UUID, Uuid
from protocol.wire.schema import Struct

Plain = Any
"""A None, bool, int, float or str, or lists and dicts of these."""

DAY_MS = 86_400_000
_UUID_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_KAFKA_UUID_TEXT = re.compile(r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{22}(?![A-Za-z0-9_-])")
_MILLISECONDS = re.compile(r"(?<!\d)\d{13}(?!\d)")
# Fields that identify an element of a list; the first match is used. Tuples of two where one field is not enough.
_KEYS: Sequence[tuple[str, ...]] = (
    ("resource_type", "resource_name"),
    ("api_key",),
    ("topic_id", "topic"),
    ("name",),
    ("topic",),
    ("topic_name",),
    ("partition_index",),
    ("partition",),
    ("index",),
    ("group_id",),
    ("group",),
    ("member_id",),
    ("node_id",),
    ("broker_id",),
    ("key",),
    ("log_dir",),
)
_ORDERED = frozenset({"synonyms"})
"""Lists of structs whose order matters."""
_SETS = frozenset({"isr_nodes"})
"""Lists whose order depends on timing."""


class Mask:
    """The masks for one broker or several: ports and directories, and the ids they allocated, numbered in order."""

    def __init__(self, *ports: int, salt: str = "", data_directories: Sequence[str] = ()) -> None:
        self._knows_directory = any(data_directories)
        erased = {salt: "", **dict.fromkeys(data_directories, "<data>")}
        self._erased = [(text, to) for text, to in erased.items() if text]
        # Only where it cannot be anything else: a port may well be 15000, like many a default.
        self._port = re.compile(rf"(?<=:)({'|'.join(map(str, ports))})(?!\d)")
        self._ids: dict[Uuid, str] = {}

    def name_id(self, topic_id: Uuid, name: str) -> None:
        """Show `topic_id` as that of `name`."""
        self._ids[topic_id] = f"<id of {self.text(name)}>"

    def plain(self, value: Any, name: str = "") -> Plain:
        """`value` (a struct, or a part of one) in plain form; `name` is its field."""
        if isinstance(value, Struct):
            return {field: self.plain(getattr(value, field), field) for field in value.declared_fields}
        if isinstance(value, Uuid):
            return self._id(value)
        if name == "records":
            return None if value is None else self._batches(memoryview(value))
        if isinstance(value, bool) or value is None or isinstance(value, float):
            return value
        if isinstance(value, int):
            return self._number(value, name)
        if isinstance(value, str):
            return self.text(value, name)
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value).hex()
        if isinstance(value, dict):
            return {key: self.plain(each, str(key)) for key, each in value.items()}
        plain = [self.plain(each, name) for each in value]
        if name in _SETS:
            return sorted(plain)
        return plain if name in _ORDERED else self._list(plain)

    def text(self, value: str, name: str = "") -> str:
        """Text without ports, random ids, directories."""
        if value and (name == "cluster_id" or (name == "log_dir" and not self._knows_directory)):
            return f"<{name}>"
        for text, to in self._erased:
            value = value.replace(text, to)
        if name == "error_message":
            value = _KAFKA_UUID_TEXT.sub("<id>", value)
        value = _MILLISECONDS.sub(lambda found: "<time>" if _is_now(int(found[0])) else found[0], value)
        return _UUID_TEXT.sub("<uuid>", self._port.sub("<port>", value))

    def _id(self, value: Uuid) -> str:
        if value == ZERO_UUID:
            return "<no id>"
        return self._ids.setdefault(value, f"<id {len(self._ids)}>")

    def _number(self, value: int, name: str) -> Plain:
        if name == "error_code":
            return f"{int(value)} {ErrorCode(value).name}"
        if name in {"producer_id", "session_id", "total_bytes", "usable_bytes", "broker_epoch"} and value > 0:
            return f"<{name}>"
        if name == "producer_id" and value == 0:
            return f"<{name}>"
        if name == "port" and value > 0:
            return "<port>"
        if _is_now(value):
            return "<time>"
        return int(value) if isinstance(value, IntEnum) else value

    def _batches(self, records: memoryview) -> Plain:
        try:
            return [self._batch(batch) for batch in read_batches(records)]
        except ApiError:
            return f"{len(records)} bytes of an older message format"

    def _batch(self, batch: RecordBatch) -> Plain:
        fields = (
            "base_offset",
            "last_offset_delta",
            "partition_leader_epoch",
            "magic",
            "attributes",
            "base_timestamp",
            "max_timestamp",
            "producer_id",
            "producer_epoch",
            "base_sequence",
            "count",
            "size_in_bytes",
        )
        plain = {field: self.plain(getattr(batch, field), field) for field in fields}
        if batch.timestamp_type is TimestampType.LOG_APPEND_TIME:
            plain["crc"] = "<crc>"
        else:
            plain["crc"] = batch.crc
        try:
            plain["keys and values"] = [
                [None if record.key is None else record.key.hex(), None if record.value is None else record.value.hex()]
                for record in batch.records()
            ]
        except ApiError as error:
            plain["keys and values"] = f"undecodable: {error.error_code.name}"
        return plain

    @staticmethod
    def _list(values: list[Plain]) -> Plain:
        """Structs by their key if they have one (their order is then meaningless), otherwise sorted."""
        if not values or not all(isinstance(value, dict) for value in values):
            return values
        for fields in _KEYS:
            if fields[0] not in values[0]:
                continue
            keys = [":".join(str(value[field]) for field in fields if field in value) for value in values]
            if len(set(keys)) == len(keys):
                return dict(sorted(zip(keys, values, strict=True)))
            break
        return sorted(values, key=lambda value: json.dumps(value, sort_keys=True))


def _is_now(value: int) -> bool:
    return abs(value - time.time() * 1000) < DAY_MS


def differences(kafka: Plain, ours: Plain, path: str = "") -> Iterator[tuple[str, Plain, Plain]]:
    """Where two plain values differ: (path, Kafka's, ours); `<absent>` stands for a missing one."""
    if isinstance(kafka, dict) and isinstance(ours, dict):
        for key in sorted({*kafka, *ours}, key=str):
            below = f"{path}.{key}" if path else str(key)
            if key not in kafka or key not in ours:
                yield below, kafka.get(key, "<absent>"), ours.get(key, "<absent>")
            else:
                yield from differences(kafka[key], ours[key], below)
    elif isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        for index, (theirs, mine) in enumerate(zip(kafka, ours, strict=True)):
            yield from differences(theirs, mine, f"{path}[{index}]")
    elif kafka != ours or type(kafka) is not type(ours):
        yield path, kafka, ours
