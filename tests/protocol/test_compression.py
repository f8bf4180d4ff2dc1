"""Codecs: round trips, the output of other writers, and limits on the decompressed size."""

from __future__ import annotations

import contextlib
import gzip
import random
import subprocess
import sys
import time
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ApiError, ErrorCode
from protocol.records import compression
from protocol.records.compression import CompressionType, compress, decompress

CODECS = [codec for codec in CompressionType if codec is not CompressionType.NONE]
TEXT = b"".join(b"line %d of a text that repeats itself, " % at for at in range(5000))
NOISE = random.Random(7).randbytes(150_000)


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("data", [b"", b"a", TEXT, NOISE, bytes(70_000)], ids=["empty", "a", "text", "noise", "zeros"])
def test_round_trip(codec: CompressionType, data: bytes) -> None:
    compressed = compress(codec, data)
    assert decompress(codec, compressed) == data
    assert decompress(codec, memoryview(bytearray(compressed))) == data
    assert decompress(codec, compressed, len(data)) == data


@given(st.sampled_from(CODECS), st.binary(max_size=5000) | st.binary(max_size=50).map(lambda part: part * 2000))
def test_round_trip_of_anything(codec: CompressionType, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_text_gets_smaller(codec: CompressionType) -> None:
    assert len(compress(codec, TEXT)) < len(TEXT) / 2


@pytest.mark.parametrize(
    ("codec", "levels"),
    [
        (CompressionType.GZIP, (-1, 1, 3, 6, 9)),
        (CompressionType.LZ4, (1, 9, 17)),
        (CompressionType.ZSTD, (-131072, -1, 1, 3, 19, 22)),
    ],
)
def test_every_level_that_kafka_allows(codec: CompressionType, levels: tuple[int, ...]) -> None:
    for level in levels:
        assert decompress(codec, compress(codec, TEXT, level)) == TEXT


def test_gzip_without_isal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    packed = compress(CompressionType.GZIP, TEXT)
    assert gzip.decompress(packed) == TEXT
    assert decompress(CompressionType.GZIP, packed) == TEXT
    assert decompress(CompressionType.GZIP, gzip.compress(b"one") + gzip.compress(b"two")) == b"onetwo"


def test_codec_libraries_are_imported_late() -> None:
    program = (
        "import sys, protocol.records.batch; "
        "print(sorted(sys.modules.keys() & {'isal', 'lz4', 'cramjam', 'zstandard'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- what others write -----------------------------------------------------------------------------------------------


def test_raw_snappy() -> None:
    assert decompress(CompressionType.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


def test_snappy_is_written_in_blocks_as_snappy_java_does() -> None:
    packed = compress(CompressionType.SNAPPY, NOISE)
    assert packed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    position, sizes = 16, []
    while position < len(packed):
        size = int.from_bytes(packed[position : position + 4], "big")
        sizes.append(len(bytes(cramjam.snappy.decompress_raw(packed[position + 4 : position + 4 + size]))))
        position += 4 + size
    assert sizes == [32768] * 4 + [len(NOISE) - 4 * 32768]


def test_joined_snappy_streams() -> None:
    assert decompress(CompressionType.SNAPPY, compress(CompressionType.SNAPPY, b"one") * 2) == b"oneone"


def test_joined_gzip_members_and_what_follows_them() -> None:
    joined = gzip.compress(b"one") + gzip.compress(TEXT) + gzip.compress(b"")
    assert decompress(CompressionType.GZIP, joined) == b"one" + TEXT
    assert decompress(CompressionType.GZIP, joined + b"junk") == b"one" + TEXT


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("checksums", [False, True])
def test_every_kind_of_lz4_frame(linked: bool, stored: bool, checksums: bool) -> None:
    packed = lz4.frame.compress(
        TEXT * 3, block_linked=linked, store_size=stored, content_checksum=checksums, block_checksum=checksums
    )
    assert decompress(CompressionType.LZ4, packed) == TEXT * 3
    assert decompress(CompressionType.LZ4, packed + b"junk") == TEXT * 3


def test_lz4_is_written_as_kafka_reads_it() -> None:
    info = lz4.frame.get_frame_info(compress(CompressionType.LZ4, TEXT))
    assert not info["block_linked"]
    assert info["block_size"] == 64 * 1024


def test_zstd_frames_of_streaming_writers() -> None:
    def stream(data: bytes) -> bytes:
        writer = zstandard.ZstdCompressor().compressobj()
        return writer.compress(data) + writer.flush()

    assert zstandard.frame_content_size(stream(TEXT)) == -1
    for data in (b"", b"a", TEXT, NOISE, bytes(3_000_000)):
        assert decompress(CompressionType.ZSTD, stream(data)) == data
    assert decompress(CompressionType.ZSTD, stream(TEXT) + stream(b"end") + compress(CompressionType.ZSTD, TEXT)) == (
        TEXT + b"end" + TEXT
    )


def test_zstd_skippable_frames_hold_no_data() -> None:
    frame = compress(CompressionType.ZSTD, TEXT)
    for first in (0x50, 0x5F):
        skippable = bytes([first]) + b"\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"index"
        empty = bytes([first]) + b"\x2a\x4d\x18" + bytes(4)
        assert decompress(CompressionType.ZSTD, skippable + frame) == TEXT
        assert decompress(CompressionType.ZSTD, empty + empty + frame + skippable + frame + empty) == TEXT + TEXT
        assert decompress(CompressionType.ZSTD, skippable) == b""
        for size in range(1, len(skippable)):
            assert code_of(CompressionType.ZSTD, frame + skippable[:size], 1 << 20) is ErrorCode.INVALID_RECORD, size
    assert code_of(CompressionType.ZSTD, b"\x60\x2a\x4d\x18" + bytes(4), 1 << 20) is ErrorCode.INVALID_RECORD


# -- bombs and garbage -----------------------------------------------------------------------------------------------


def code_of(codec: CompressionType, data: bytes, cap: int) -> ErrorCode | None:
    try:
        assert len(decompress(codec, data, cap)) <= cap
    except ApiError as error:
        return error.error_code
    return None


@pytest.mark.parametrize("codec", CompressionType)
def test_one_byte_more_than_allowed(codec: CompressionType) -> None:
    for data in (TEXT, NOISE, b"ab", bytes(100_000)):
        with pytest.raises(ApiError, match="more than") as error:
            decompress(codec, compress(codec, data), len(data) - 1)
        assert error.value.error_code is ErrorCode.INVALID_RECORD


MEGABYTE = bytes(1_000_000)


def gzip_bomb() -> bytes:
    member = zlib.compressobj(1, wbits=31)
    return b"".join(member.compress(MEGABYTE) for _ in range(300)) + member.flush()


def zstd_bomb() -> bytes:
    frame = zstandard.ZstdCompressor(level=1).compressobj()
    return b"".join(frame.compress(MEGABYTE) for _ in range(300)) + frame.flush()


def zstd_bomb_of_one_byte_blocks() -> bytes:
    """Blocks of four bytes that each stand for 128 KiB of the same byte."""
    block = (0x20000 << 3 | 1 << 1).to_bytes(3, "little") + b"x"
    return b"(\xb5/\xfd" + bytes([0, 10 << 3]) + block * 200_000 + b"\x01\x00\x00"


BOMBS: dict[str, tuple[CompressionType, Callable[[], bytes]]] = {
    "gzip": (CompressionType.GZIP, gzip_bomb),
    "gzip members": (CompressionType.GZIP, lambda: gzip.compress(MEGABYTE, 1) * 300),
    "zstd streamed": (CompressionType.ZSTD, zstd_bomb),
    "zstd blocks": (CompressionType.ZSTD, zstd_bomb_of_one_byte_blocks),
    "zstd frames": (CompressionType.ZSTD, lambda: compress(CompressionType.ZSTD, MEGABYTE) * 300),
    "zstd declared": (CompressionType.ZSTD, lambda: compress(CompressionType.ZSTD, MEGABYTE * 300)),
    "lz4": (CompressionType.LZ4, lambda: lz4.frame.compress(MEGABYTE * 300, block_linked=False)),
    "lz4 declared": (CompressionType.LZ4, lambda: lz4.frame.compress(MEGABYTE * 300, store_size=True)),
    "snappy declared": (
        CompressionType.SNAPPY,
        lambda: b"\xff\xff\xff\xff\x0f" + bytes(cramjam.snappy.compress_raw(MEGABYTE))[4:],
    ),
    "snappy chunk": (
        CompressionType.SNAPPY,
        lambda: compress(CompressionType.SNAPPY, b"")[:16] + (2**31 - 1).to_bytes(4, "big") + b"x",
    ),
    "snappy blocks": (CompressionType.SNAPPY, lambda: compress(CompressionType.SNAPPY, MEGABYTE * 300)),
}
"""Each decompresses to 300 MB or more, or claims to."""


BOMB_PROGRAM = """
import pathlib, resource, sys
from protocol.records.compression import CompressionType, decompress
from protocol.errors import ApiError
import isal.isal_zlib, cramjam, lz4.frame, zstandard
codec, data = CompressionType(int(sys.argv[1])), sys.stdin.buffer.read()

def peak():  # on Linux, getrusage knows that of the process which started this one, too
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = peak()
try:
    decompress(codec, data, 4_000_000)
except ApiError as error:
    print((peak() - before) // 1024, error.error_code.name)
"""


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_bombs_take_no_memory(name: str) -> None:
    """CVE-2023-34455 of snappy-java, which trusts the length of a chunk."""
    codec, make = BOMBS[name]
    data = make()
    done = subprocess.run(
        [sys.executable, "-c", BOMB_PROGRAM, str(int(codec))], input=data, capture_output=True, check=True, timeout=60
    )
    megabytes, code = done.stdout.split()
    assert code == b"INVALID_RECORD"
    assert int(megabytes) < 32


def test_zstd_with_a_window_of_gigabytes() -> None:
    magic, descriptor = (0xFD2FB528).to_bytes(4, "little"), b"\x00"
    window = bytes([(30 - 10) << 3])  # 2^30
    frame = magic + descriptor + window + b"\x01\x00\x00"
    assert code_of(CompressionType.ZSTD, frame, 1 << 20) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_is_an_error(codec: CompressionType) -> None:
    whole = compress(codec, b"some records, some records, some records")
    for size in range(len(whole)):
        shorter = whole[:size]
        if size == {CompressionType.GZIP: 0, CompressionType.ZSTD: 0, CompressionType.SNAPPY: 16}.get(codec):
            assert decompress(codec, shorter) == b""  # without a member, frame or block: empty, but not malformed
        else:
            assert code_of(codec, shorter, 1 << 20) is ErrorCode.INVALID_RECORD, size


@pytest.mark.parametrize("codec", CODECS)
def test_random_and_mutated_bytes(codec: CompressionType) -> None:
    rng = random.Random(int(codec))
    seeds = [compress(codec, TEXT[:3000]), compress(codec, NOISE[:500]), compress(codec, bytes(60_000))]
    started = time.process_time()
    for case in range(3000):
        data = bytearray(rng.choice(seeds)) if case % 4 else bytearray(rng.randbytes(rng.randrange(200)))
        for _ in range(rng.randrange(1, 6)):
            if data:
                data[rng.randrange(min(len(data), 40) if rng.random() < 0.5 else len(data))] = rng.randrange(256)
        with contextlib.suppress(ApiError):
            assert len(decompress(codec, bytes(data), 100_000)) <= 100_000
    assert time.process_time() - started < 60


def test_contexts_are_reused_and_survive_errors() -> None:
    for _ in range(50):
        assert code_of(CompressionType.ZSTD, b"(\xb5/\xfd" + NOISE[:50], 1 << 20) is ErrorCode.INVALID_RECORD
        assert decompress(CompressionType.ZSTD, compress(CompressionType.ZSTD, TEXT)) == TEXT
    assert len(compression._zstd_decompressors) == 1
