"""The four codecs of record batches, each with a hard cap on its output.

A compressed batch of a megabyte can claim to hold terabytes. So all decompression here is capped: a declared size is
checked first, and formats without one are decompressed piecewise. Codec libraries are imported on first use, because
most brokers never look inside a batch.

Framing facts: Kafka's `CompressionType`, `Lz4BlockOutputStream` (64 KiB independent blocks) and snappy-java's
`SnappyOutputStream` (the "Xerial" framing), KIP-110 (zstd), KIP-390 (levels).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NoReturn

from protocol.errors import ApiError, ErrorCode

MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024
"""The default cap: about a hundred times the default `message.max.bytes`."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_SNAPPY_MAX_RATIO = 32  # the densest element, a 3 byte copy, yields 64 bytes
_ZSTD_MAX_WINDOW_BYTES = 1 << 27  # zstd's own limit for streams (ZSTD_WINDOWLOG_LIMIT_DEFAULT)
_ZSTD_MAX_BLOCK_BYTES = 128 * 1024
_ZSTD_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"  # after a first byte of 0x50 to 0x5f
_ZSTD_RLE_BLOCK, _ZSTD_COMPRESSED_BLOCK = 1, 2


class CompressionType(IntEnum):
    """Codec ids in the attributes of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: CompressionType, data: bytes, level: int | None = None) -> bytes:
    """`data` in the framing that Kafka's Java client writes for `codec`; `level` None means the codec's default."""
    return _COMPRESSORS[codec](data, level)


def decompress(
    codec: CompressionType, data: bytes | memoryview, max_output_bytes: int = MAX_DECOMPRESSED_BYTES
) -> bytes:
    """Decompress `data` into at most `max_output_bytes`.

    Raises ApiError INVALID_RECORD when `data` is invalid for the codec, and when the output would be too large. (Not
    CORRUPT_MESSAGE, which clients retry: the CRC proves that the producer sent exactly this.)
    """
    return _DECOMPRESSORS[codec](data, max_output_bytes)


def _malformed(codec: str, reason: object) -> ApiError:
    return ApiError(ErrorCode.INVALID_RECORD, f"Failed to decompress {codec} record batch: {reason}")


def _too_large(codec: str, max_output_bytes: int) -> NoReturn:
    raise ApiError(
        ErrorCode.INVALID_RECORD, f"A {codec} record batch decompresses to more than {max_output_bytes} bytes"
    )


def _check_cap(codec: str, size: int, max_output_bytes: int) -> None:
    if size > max_output_bytes:
        _too_large(codec, max_output_bytes)


# -- none ------------------------------------------------------------------------------------------------------------


def _none_compress(data: bytes, _level: int | None) -> bytes:
    return data


def _none_decompress(data: bytes | memoryview, max_output_bytes: int) -> bytes:
    _check_cap("uncompressed", len(data), max_output_bytes)
    return bytes(data)


# -- gzip ------------------------------------------------------------------------------------------------------------

_GZIP_WBITS = 31


def _zlib_module() -> Any:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


def _gzip_compress(data: bytes, level: int | None) -> bytes:
    module = _zlib_module()
    if level is None or level == -1:
        compressor = module.compressobj(wbits=_GZIP_WBITS)
    elif module is not zlib and level <= 3:
        compressor = module.compressobj(level, wbits=_GZIP_WBITS)  # isal only supports levels 0 to 3
    else:
        compressor = zlib.compressobj(level, wbits=_GZIP_WBITS)
    compressed: bytes = compressor.compress(data) + compressor.flush()
    return compressed


def _gzip_decompress(data: bytes | memoryview, max_output_bytes: int) -> bytes:
    module = _zlib_module()
    parts: list[bytes] = []
    produced = position = 0
    feed = len(data)
    try:
        while position < len(data):
            member = module.decompressobj(wbits=_GZIP_WBITS)
            while not member.eof and position < len(data):
                piece = data[position : position + feed]
                part = member.decompress(piece, max_output_bytes - produced + 1)
                produced += len(part)
                _check_cap("gzip", produced, max_output_bytes)
                parts.append(part)
                position += len(piece) - len(member.unused_data)
            if not member.eof:
                raise _malformed("gzip", "unexpected end of data")
            if bytes(data[position : position + 2]) != b"\x1f\x8b":
                break  # like java.util.zip.GZIPInputStream, which ignores bytes after the last member
            feed = 4096  # small pieces from here on: each member copies the rest of its last piece
    except (module.error, zlib.error) as error:
        raise _malformed("gzip", error) from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


# -- snappy ----------------------------------------------------------------------------------------------------------


def _snappy_compress(data: bytes, _level: int | None) -> bytes:
    import cramjam

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _snappy_block(data: bytes | memoryview, max_output_bytes: int) -> bytes:
    import cramjam

    try:
        declared = cramjam.snappy.decompress_raw_len(data)
        _check_cap("snappy", declared, max_output_bytes)
        if declared > len(data) * _SNAPPY_MAX_RATIO:
            raise _malformed("snappy", f"{len(data)} bytes cannot hold the declared {declared}")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise _malformed("snappy", error) from error


def _snappy_decompress(data: bytes | memoryview, max_output_bytes: int) -> bytes:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return _snappy_block(data, max_output_bytes)
    parts: list[bytes] = []
    produced, position, end = 0, len(_XERIAL_HEADER), len(data)
    if end < position:
        raise _malformed("snappy", "unexpected end of data")
    while position < end:
        if bytes(data[position : position + 8]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)  # snappy-java reads concatenated streams as one
            continue
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4
        if not 0 < size <= end - position:
            raise _malformed("snappy", f"block of {size} bytes at {position}, {end - position} bytes left")
        part = _snappy_block(data[position : position + size], max_output_bytes - produced)
        produced += len(part)
        parts.append(part)
        position += size
    return b"".join(parts)


# -- lz4 -------------------------------------------------------------------------------------------------------------


def _lz4_compress(data: bytes, level: int | None) -> bytes:
    import lz4.frame

    compressed: bytes = lz4.frame.compress(
        data,
        compression_level=0 if level is None else level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,  # Kafka's Java reader refuses linked blocks
        store_size=False,
    )
    return compressed


def _lz4_decompress(data: bytes | memoryview, max_output_bytes: int) -> bytes:
    import lz4.frame

    parts: list[bytes] = []
    produced = 0
    step = max(4 * len(data), 64 * 1024)
    decompressor = lz4.frame.LZ4FrameDecompressor()
    feed: bytes | memoryview = data
    try:
        while not decompressor.eof:
            part = decompressor.decompress(feed, max_length=min(step, max_output_bytes - produced + 1))
            if not part and not decompressor.eof:
                raise _malformed("lz4", "unexpected end of data")
            produced += len(part)
            _check_cap("lz4", produced, max_output_bytes)
            parts.append(part)
            feed = b""
    except (RuntimeError, ValueError, EOFError) as error:
        raise _malformed("lz4", error) from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


# -- zstd ------------------------------------------------------------------------------------------------------------

# Contexts cost more than a small batch does. They are not safe to share between threads, so each call takes one out
# of the pool and puts it back; list.pop and list.append are atomic.
_zstd_compressors: dict[int, list[Any]] = {}
_zstd_decompressors: list[Any] = []
_POOL_LIMIT = 8


def _zstd_compress(data: bytes, level: int | None) -> bytes:
    import zstandard

    effective = 3 if level is None else level
    pool = _zstd_compressors.setdefault(effective, [])
    try:
        context = pool.pop()
    except IndexError:
        context = zstandard.ZstdCompressor(level=effective)
    compressed: bytes = context.compress(data)
    if len(pool) < _POOL_LIMIT:
        pool.append(context)
    return compressed


def _zstd_decompress(data: bytes | memoryview, max_output_bytes: int) -> bytes:
    import zstandard

    try:
        context = _zstd_decompressors.pop()
    except IndexError:
        context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
    view = memoryview(data)
    parts: list[bytes] = []
    produced = position = 0
    try:
        while position < len(view):
            frame = view[position:]
            if _is_skippable(frame):
                position += _skippable_size(frame)
                continue
            size, bound, declared = _measure_zstd_frame(frame)
            allowed = max_output_bytes - produced
            if declared and bound > allowed:  # zstandard allocates the declared size unchecked
                _too_large("zstd", max_output_bytes)
            try:
                # 0 would mean "no limit"
                part: bytes = context.decompress(frame[:size], max_output_size=max(1, min(bound, allowed)))
            except zstandard.ZstdError:
                if bound > allowed:
                    _too_large("zstd", max_output_bytes)
                raise
            produced += len(part)
            _check_cap("zstd", produced, max_output_bytes)
            parts.append(part)
            position += size
    except zstandard.ZstdError as error:
        raise _malformed("zstd", error) from error
    finally:
        if len(_zstd_decompressors) < _POOL_LIMIT:
            _zstd_decompressors.append(context)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _is_skippable(frame: memoryview) -> bool:
    """Whether a frame holds no data but something of its writer (RFC 8878, section 3.1.2)."""
    return frame[1:4] == _ZSTD_SKIPPABLE_MAGIC and frame[0] & 0xF0 == 0x50


def _skippable_size(frame: memoryview) -> int:
    size = 8 + int.from_bytes(frame[4:8], "little")
    if len(frame) < max(8, size):
        raise _malformed("zstd", "unexpected end of data")
    return size


def _measure_zstd_frame(frame: memoryview) -> tuple[int, int, bool]:
    """Size of the frame at the start of `frame`, the most that it can decompress to, and whether it declares that.

    See RFC 8878, section 3.1.1. Streaming writers do not declare the size of the contents, and zstd would need a buffer
    of the full cap. The sizes in the block headers give a bound.
    """
    import zstandard

    parameters = zstandard.get_frame_parameters(frame)
    position = zstandard.frame_header_size(frame)
    bound, last, declared = 0, False, False
    while not last:
        if position + 3 > len(frame):
            raise _malformed("zstd", "unexpected end of data")
        header = int.from_bytes(frame[position : position + 3], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        position += 3 + (1 if kind == _ZSTD_RLE_BLOCK else size)
        bound += _ZSTD_MAX_BLOCK_BYTES if kind == _ZSTD_COMPRESSED_BLOCK else size
    if parameters.content_size not in {zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR}:
        if parameters.content_size > bound:
            raise _malformed("zstd", f"the declared {parameters.content_size} bytes are more than the blocks can hold")
        bound, declared = parameters.content_size, True
    return position + (4 if parameters.has_checksum else 0), bound, declared


_COMPRESSORS: tuple[Callable[[bytes, int | None], bytes], ...] = (
    _none_compress,
    _gzip_compress,
    _snappy_compress,
    _lz4_compress,
    _zstd_compress,
)
_DECOMPRESSORS: tuple[Callable[[bytes | memoryview, int], bytes], ...] = (
    _none_decompress,
    _gzip_decompress,
    _snappy_decompress,
    _lz4_decompress,
    _zstd_decompress,
)
