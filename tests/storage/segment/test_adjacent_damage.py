"""Batches damaged in a header field outside the CRC, alone or next to another damaged batch."""

from __future__ import annotations

import pytest

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import read_batches
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.support import DIR, T0, TOPIC_ID, TP, append, batch_of, close_cleanly, load_logs, open_manager

SIZE = len(batch_of(b"value 000"))
CONFIG = LogConfig(segment_bytes=6 * SIZE, index_interval_bytes=200)
RECORDS = 18
"""Three full segments; the last one is active."""
FIELDS = {
    "base offset, near": (7, 1),
    "base offset, behind the log": (7, 5),
    "base offset, beyond the index": (4, 0),
    "base offset, far": (1, 7),
    "base offset, negative": (0, 7),
    "length": (10, 4),
    "leader epoch": (15, 2),
    "magic": (16, 0),
}
"""Byte and bit of each flip in the header of a batch."""


def damaged_log(clean: bool, *damages: tuple[int, int, int]) -> UnifiedLog:
    """A log on stable storage with flipped bits: (offset of the batch, byte, bit)."""
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system, CONFIG)
    log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
    for number in range(RECORDS):
        append(log, b"value %03d" % number, epoch=3, timestamps=[T0 + number])
    log.flush(T0)
    if clean:
        close_cleanly(manager)
    else:
        manager.checkpoints.write_recovery_points()
    file_system.kill_process()
    for offset, byte, bit in damages:
        segment, number = divmod(offset, 6)
        path = f"{DIR}/t-0/{6 * segment:020d}.log"
        content = bytearray(file_system.read_file(path))
        content[number * SIZE + byte] ^= 1 << bit
        file_system.write_file(path, bytes(content))
    manager = LogManager(file_system, (DIR,), CONFIG)
    manager.directories.lock()
    report = load_logs(manager, T0, {"t": CONFIG})
    assert not any(result.split_segments or result.truncated_bytes for result in report.repaired)
    return manager.logs[TP]


def served(log: UnifiedLog) -> dict[int, bytes | None]:
    """The records that readers from each offset get, by offset."""
    found: dict[int, bytes | None] = {}
    for offset in range(log.log_end_offset):
        try:
            info = log.read(offset, 10_000)
        except ApiError as error:
            assert error.error_code is ErrorCode.CORRUPT_MESSAGE
            continue
        assert info.file is not None
        for batch in read_batches(memoryview(info.file.pread(info.position, info.size))):
            assert batch.partition_leader_epoch == 3
            found |= {record.offset: record.value for record in batch.records()}
    return found


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("neighbour", [-1, 0, 1])
@pytest.mark.parametrize("field", FIELDS)
def test_only_what_is_damaged_is_refused(field: str, neighbour: int, clean: bool) -> None:
    for offset in (0, 1, 3, 4, 5, 6, 7, 9, 11, 12, 13, 14, 16):
        if offset + neighbour < 0 or (offset, neighbour) == (16, -1):
            continue  # no batch is there; or nothing shows whether the last one, after the two, is valid
        if field == "leader epoch" and (offset % 6 in {0, 5} or (offset + neighbour) % 6 in {0, 5}):
            continue  # without a neighbour on either side in the segment, nothing shows that it is wrong
        others = [(offset + neighbour, SIZE - 3, 0)] if neighbour else []
        log = damaged_log(clean, (offset, *FIELDS[field]), *others)
        assert log.log_end_offset == RECORDS
        left = [each for each in range(RECORDS) if each not in {offset, offset + neighbour}]
        assert served(log) == {each: b"value %03d" % each for each in left}, offset
