"""Deleted segments free their disk space, and their pending reads still succeed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.io.os_file_system import OsFileSystem
from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager
from tests.storage.compaction.cleaning import COMPACT, clean_log, put
from tests.storage.support import T0, TOPIC_ID, TP, delete_expired, open_manager, read_all


def held_open(directory: Path) -> list[str]:
    """The deleted files below `directory` that this process still has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:
            continue
        if target.startswith(str(directory)) and target.endswith(" (deleted)"):
            found.append(target)
    return found


@pytest.fixture
def written(tmp_path: Path) -> tuple[OsFileSystem, LogManager, UnifiedLog]:
    file_system = OsFileSystem()
    manager, _ = open_manager(file_system, COMPACT, str(tmp_path))
    log = manager.get_or_create(TP, TOPIC_ID, COMPACT, T0)
    for number in range(100):
        put(log, (b"k%d" % (number % 3), b"x" * 50))
    log.flush(T0)
    assert len(read_all(log)) == 100
    assert log.segments[0].find_batch(5) is not None
    return file_system, manager, log


def remove_deleted(manager: LogManager) -> None:
    delete_expired(manager, T0)
    assert delete_expired(manager, T0 + COMPACT.file_delete_delay_ms) == 0


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("how", ["compaction", "retention", "truncation"])
def test_room_is_given_back(written: tuple[OsFileSystem, LogManager, UnifiedLog], tmp_path: Path, how: str) -> None:
    file_system, manager, log = written
    if how == "compaction":
        clean_log(file_system, manager, log, T0)
    elif how == "retention":
        log.delete_records_before(95, 100)
        assert len(log.delete_old_segments()) > 5
    else:
        log.truncate_to(5, T0)
    remove_deleted(manager)
    assert not list(tmp_path.glob("*/*.deleted"))
    assert held_open(tmp_path) == []


def test_an_old_index_does_not_become_the_new_one(written: tuple[OsFileSystem, LogManager, UnifiedLog]) -> None:
    file_system, manager, log = written
    old = log.segments[0]
    index = old.files.offset_index
    entries = [index.entry(number) for number in range(len(index))]
    assert len(entries) > 1
    clean_log(file_system, manager, log, T0)
    assert len(log.segments[0].files.offset_index) == 0
    index.close()  # as the limit on descriptors does during a lookup
    assert [index.entry(number) for number in range(len(index))] == entries
    assert old.find_batch(5) is not None
