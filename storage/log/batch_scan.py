"""Walking the headers of batches in a file, and telling the formats apart that cannot be read."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import HEADER_BYTES, RecordBatch
from protocol.records.record_format import MAGIC_AT

SCAN_BYTES = 16 * 1024
"""Read at once where a few batches are wanted."""
_OLD_MESSAGE = struct.Struct(">qiIb")  # offset, size, CRC-32 of what follows it, magic (Kafka class LegacyRecord)
_CRC_BYTES = 4
_MIN_OLD_MESSAGE_BYTES = 14


class UnsupportedFormatError(ValueError):
    """Records of message format v0 or v1; the message names the file."""


def scan_headers(
    path: str,
    read: Callable[[int, int], bytes | bytearray],
    position: int,
    end: int,
    chunk_bytes: int = SCAN_BYTES,
) -> Iterator[tuple[int, RecordBatch]]:
    """(position, header) of the batches from `position`, the start of one, up to `end`; `buffer` of a batch may be
    longer or shorter than it.

    Stops before a batch that does not fit below `end`. Raises UnsupportedFormatError for an older magic, ApiError
    CORRUPT_MESSAGE naming file and position for a header that cannot be one, and what `read(position, size)`
    raises.
    """
    while end - position >= HEADER_BYTES:
        buffer = memoryview(read(position, min(chunk_bytes, end - position)))
        at = 0
        while len(buffer) - at >= HEADER_BYTES:
            batch = RecordBatch(buffer[at:])
            check_header(path, position, batch)
            size = batch.size_in_bytes
            if size > end - position:
                return
            yield position, batch
            position += size
            at += size
        if at == 0:
            return


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


def check_header(path: str, position: int, batch: RecordBatch) -> None:
    """Raises ApiError CORRUPT_MESSAGE unless the header can be one of a v2 batch."""
    if batch.magic != 2:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{path} is corrupt at byte {position}: magic {batch.magic}")
    if batch.size_in_bytes < HEADER_BYTES:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{path} is corrupt at byte {position}: batch length {batch.length}")
