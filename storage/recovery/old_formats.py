"""Telling records in message format v0 or v1, which cannot be read, from damage."""

from __future__ import annotations

import struct
import zlib

from protocol.records.record_format import MAGIC_AT

_OLD_MESSAGE = struct.Struct(">qiIb")  # offset, size, CRC-32 of what follows it, magic (Kafka class LegacyRecord)
_CRC_BYTES = 4
_MIN_OLD_MESSAGE_BYTES = 14


class UnsupportedFormatError(ValueError):
    """Records of message format v0 or v1; the message names the file."""


def refuse_old_format(path: str, data: bytes) -> None:
    """Raises UnsupportedFormatError when `data`, the start of a file, begins with a message of format v0 or v1.

    Only a message whose CRC agrees is one: zeros, which a power cut leaves in a file, have the magic of format v0.
    """
    if len(data) <= MAGIC_AT:
        return
    _, size, crc, magic = _OLD_MESSAGE.unpack_from(data)
    end = MAGIC_AT - _CRC_BYTES + size
    is_whole = size >= _MIN_OLD_MESSAGE_BYTES and end <= len(data)
    if magic in {0, 1} and is_whole and zlib.crc32(data[MAGIC_AT:end]) == crc:
        raise UnsupportedFormatError(
            f"{path} holds records of message format v{magic}; "
            "only message format v2 (Kafka 0.11 and later) can be read"
        )
