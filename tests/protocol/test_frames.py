"""Frames from arbitrary pieces, and the memory they use."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.wire.frames import FrameError, FrameReader, ReceiveBuffer


def stream_of(frames: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def receive(reader: FrameReader, data: bytes) -> list[bytes]:
    """Let `reader` receive `data`, in as many reads as necessary."""
    frames, position = [], 0
    while position < len(data):
        buffer = reader.get_buffer(-1)
        count = min(len(buffer), len(data) - position)
        assert count > 0
        buffer[:count] = data[position : position + count]
        position += count
        reader.received(count)
        frames += remaining(reader)
    return frames


def remaining(reader: FrameReader) -> list[bytes]:
    """The complete frames received so far."""
    frames = []
    while (frame := reader.next_frame()) is not None:
        assert not frame.readonly
        frames.append(bytes(frame))
    return frames


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(
    frames=st.lists(st.binary(max_size=40), max_size=8),
    pieces=st.lists(st.integers(1, 60), min_size=1, max_size=30),
    shared=st.sampled_from([4, 5, 16, 64, 4096]),
)
def test_any_split_of_the_stream_gives_the_same_frames(frames: list[bytes], pieces: list[int], shared: int) -> None:
    reader = FrameReader(100, ReceiveBuffer(shared))
    data, got, position, turn = stream_of(frames), [], 0, 0
    while position < len(data):
        piece = data[position : position + pieces[turn % len(pieces)]]
        got += receive(reader, piece)
        position += len(piece)
        turn += 1
    assert got == frames
    assert reader.held_bytes == 0


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(
    frames=st.lists(st.binary(max_size=40), max_size=8),
    pieces=st.lists(st.integers(1, 60), min_size=1, max_size=30),
    steps=st.lists(st.sampled_from(["take", "put back", "stop"]), min_size=1, max_size=12),
)
def test_whoever_stops_between_two_frames_finds_the_rest(
    frames: list[bytes], pieces: list[int], steps: list[str]
) -> None:
    shared = ReceiveBuffer(64)
    reader = FrameReader(100, shared)
    data, got, position, turn = stream_of(frames), [], 0, 0
    while position < len(data):
        piece = data[position : position + pieces[turn % len(pieces)]]
        position += len(piece)
        turn += 1
        reader.get_buffer()[: len(piece)] = piece
        reader.received(len(piece))
        for step in steps:
            frame = None if step == "stop" else reader.next_frame()
            if frame is None:
                break
            if step == "put back":
                reader.put_back()
            else:
                got.append(bytes(frame))
        reader.keep()
        shared.view[:] = b"\xaa" * len(shared.view)  # another connection receives data
    assert got + remaining(reader) == frames
    assert not reader.has_unread
    reader.keep()
    assert reader.held_bytes == 0


def test_frames_of_all_sizes_through_one_shared_buffer() -> None:
    randomness = random.Random(7)
    shared = ReceiveBuffer()
    connections = []
    for _ in range(6):
        sizes = [randomness.choice([0, 1, 3, 100, 5_000, 40_000, 300_000, 1_200_000]) for _ in range(10)]
        frames = [randomness.randbytes(size) for size in sizes]
        connections.append((FrameReader(2_000_000, shared), frames, stream_of(frames), []))
    positions = [0] * len(connections)
    while any(position < len(connections[index][2]) for index, position in enumerate(positions)):
        index = randomness.randrange(len(connections))
        reader, _, data, got = connections[index]
        piece = data[positions[index] : positions[index] + randomness.choice([1, 3, 1000, 70_000, 400_000])]
        got += receive(reader, piece)
        positions[index] += len(piece)
    for _, frames, _, got in connections:
        assert got == frames


def test_a_frame_in_one_piece_is_not_copied() -> None:
    shared = ReceiveBuffer()
    reader = FrameReader(1000, shared)
    data = stream_of([b"abc", b"defg"])
    reader.get_buffer()[: len(data)] = data
    reader.received(len(data))
    first, second = reader.next_frame(), reader.next_frame()
    assert first is not None
    assert second is not None
    assert first.obj is second.obj is shared.view.obj
    first[0] = ord("x")
    assert bytes(shared.view[4:7]) == b"xbc"


def test_a_large_frame_is_received_where_it_stays() -> None:
    shared = ReceiveBuffer(4096)
    reader = FrameReader(1 << 20, shared)
    data = stream_of([bytes(500_000)])
    reader.get_buffer()[:4096] = data[:4096]
    reader.received(4096)
    assert reader.next_frame() is None
    assert reader.get_buffer().obj is not shared.view.obj
    assert receive(reader, data[4096:]) == [bytes(500_000)]


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (-1, r"Invalid receive \(size = -1\)"),
        (-(2**31), r"Invalid receive \(size = -2147483648\)"),
        (101, r"Invalid receive \(size = 101 larger than 100\)"),
        (2**31 - 1, r"Invalid receive \(size = 2147483647 larger than 100\)"),
    ],
)
def test_lengths_that_no_peer_may_send(size: int, message: str) -> None:
    length = struct.pack(">i", size)
    for pieces in ([length], [length[:1], length[1:]], [stream_of([b"ok"]) + length + b"more"]):
        reader = FrameReader(100, ReceiveBuffer())
        *first, last = pieces
        for piece in first:
            receive(reader, piece)
        with pytest.raises(FrameError, match=message):
            receive(reader, last)


def test_the_largest_frame_allowed() -> None:
    assert receive(FrameReader(100, ReceiveBuffer()), stream_of([bytes(100)])) == [bytes(100)]


def test_a_length_alone_allocates_nothing() -> None:
    shared = ReceiveBuffer()
    readers = [FrameReader(100 << 20, shared) for _ in range(1000)]
    tracemalloc.start()
    for reader in readers:
        assert receive(reader, struct.pack(">i", 100 << 20)) == []
    taken, _ = tracemalloc.get_traced_memory()
    assert taken < 200_000
    for reader in readers:
        assert reader.held_bytes == 100 << 20
        assert receive(reader, bytes(1000)) == []
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 1000 * 5000


@pytest.mark.parametrize("is_viewed", [False, True])
def test_a_very_large_frame_is_made_of_pages_that_are_there(is_viewed: bool) -> None:
    reader = FrameReader(100 << 20, ReceiveBuffer())
    pieces = [bytes([number]) * 100_000 for number in range(250)]
    data = stream_of([b"".join(pieces)])
    tracemalloc.start()
    position, views = 0, []
    while position < len(data):
        buffer = reader.get_buffer()
        count = min(len(buffer), 100_000, len(data) - position)
        buffer[:count] = data[position : position + count]
        views = [buffer] if is_viewed else []  # an event loop may hold one for longer
        del buffer
        position += count
        reader.received(count)
        frame = reader.next_frame()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 7_000_000
    assert frame is not None
    assert frame == data[4:]
    del views


def test_an_idle_connection_holds_no_buffer() -> None:
    shared = ReceiveBuffer()
    readers = [FrameReader(100 << 20, shared) for _ in range(100)]
    tracemalloc.start()
    for reader in readers:
        assert len(receive(reader, stream_of([bytes(300_000)]))) == 1
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 2_000_000


def test_spare_buffers_are_used_again_and_bounded() -> None:
    shared = ReceiveBuffer(4096)
    buffer = shared.take(100_000)
    shared.give_back(buffer)
    assert shared.take(50_000) is buffer
    returned = [bytearray(1 << 20) for _ in range(20)]
    for spare in returned:
        shared.give_back(spare)
    taken = [shared.take(1 << 20) for _ in range(20)]
    assert sum(any(spare is one for one in returned) for spare in taken) == 4


def test_a_very_large_frame_leaves_no_spare_buffers() -> None:
    """Several of them at once would leave 4 MB, although smaller frames seldom need as much."""
    shared = ReceiveBuffer()
    tracemalloc.start()
    assert len(receive(FrameReader(100 << 20, shared), stream_of([bytes(20_000_000)]))) == 1
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 500_000
