"""The FileSystem contract, on the operating system's disk and on the in-memory one."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from storage.io import os_file_system as module
from storage.io.file_system import FileSystem, WouldWaitError, reader_of
from storage.io.os_file_system import OsFileSystem
from tests.kit.memory_file_system import Fault, MemoryFileSystem, PowerCut, SimulatedCrash


@pytest.fixture(params=["os", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    if request.param == "os":
        return OsFileSystem(max_open_files=8), str(tmp_path)
    file_system = MemoryFileSystem()
    file_system.make_dirs("/a/b")
    return file_system, "/a/b"


def choosing(*answers: int) -> Callable[[int], int]:
    """Make these choices in order, wherever more than one is possible."""
    left = iter(answers)
    return lambda count: next(left, 0) % count if count > 1 else 0


def target_of(descriptor: str) -> str:
    """The file that a descriptor of this process refers to; empty if it was just closed."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""


class TestContract:
    def test_append_and_read(self, disk: tuple[FileSystem, str]) -> None:
        file_system, root = disk
        file = file_system.open(f"{root}/f")
        assert file.size == 0
        file.append([b"abc", memoryview(b"defg"), bytearray(b"h")])
        file.append([b"ij"])
        assert file.size == 10
        assert file.pread(0, 100) == b"abcdefghij"
        assert file.pread(3, 4) == b"defg"
        assert file.pread(10, 4) == b""
        assert file.try_pread(2, 3) == b"cde"
        assert file.try_pread(8, 30) == b"ij"
        buffer = bytearray(b"....")
        assert file.try_pread_into(2, buffer) == 4
        assert buffer == b"cdef"
        assert file.try_pread_into(8, memoryview(buffer)) == 2
        assert buffer == b"ijef"
        assert file.try_pread_into(11, buffer) == 0
        file.flush()
        again = file_system.open(f"{root}/f")
        assert again.size == 10
        assert file_system.attach(f"{root}/f", 10).pread(5, 2) == b"fg"
        assert file_system.read_file(f"{root}/f") == b"abcdefghij"

    def test_many_parts(self, disk: tuple[FileSystem, str]) -> None:
        file_system, root = disk
        file = file_system.open(f"{root}/f")
        file.append([b"%04d" % number for number in range(3000)])
        assert file.size == 12000
        assert file.pread(8000, 4) == b"2000"

    def test_truncate(self, disk: tuple[FileSystem, str]) -> None:
        file_system, root = disk
        file = file_system.open(f"{root}/f")
        file.append([b"0123456789"])
        file.truncate(4)
        assert file.size == 4
        file.append([b"x"])
        assert file_system.read_file(f"{root}/f") == b"0123x"

    def test_unsynced(self, disk: tuple[FileSystem, str]) -> None:
        file_system, root = disk
        file = file_system.open(f"{root}/f")
        assert file.unsynced
        file.flush()
        assert not file.unsynced
        file.append([b"x"])
        assert file.unsynced

    def test_rename_while_open(self, disk: tuple[FileSystem, str]) -> None:
        file_system, root = disk
        file_system.write_file(f"{root}/target", b"old")
        file = file_system.open(f"{root}/f")
        file.append([b"abc"])
        file.rename(f"{root}/target")
        file.append([b"d"])
        assert file_system.read_file(f"{root}/target") == b"abcd"
        assert not file_system.exists(f"{root}/f")
        file.close()
        assert file.pread(0, 9) == b"abcd"

    def test_directories(self, disk: tuple[FileSystem, str]) -> None:
        file_system, root = disk
        file_system.make_dir(f"{root}/d")
        with pytest.raises(FileExistsError):
            file_system.make_dir(f"{root}/d")
        with pytest.raises(FileNotFoundError):
            file_system.make_dir(f"{root}/no/d")
        file_system.make_dirs(f"{root}/d/e/f")
        file_system.make_dirs(f"{root}/d/e/f")
        file_system.write_file(f"{root}/d/x", b"12345")
        file_system.create(f"{root}/d/x")
        listed = {info.name: (info.size, info.is_dir) for info in file_system.list_dir(f"{root}/d")}
        assert listed == {"x": (5, False), "e": (0, True)}
        file_system.sync_dir(f"{root}/d")
        file_system.sync_file(f"{root}/d/x")
        file_system.rename(f"{root}/d", f"{root}/moved")
        assert file_system.exists(f"{root}/moved/x")
        file_system.remove(f"{root}/moved/x")
        with pytest.raises(FileNotFoundError):
            file_system.remove(f"{root}/moved/x")
        file_system.remove_tree(f"{root}/moved")
        assert file_system.list_dir(root) == []
        with pytest.raises(FileNotFoundError):
            file_system.list_dir(f"{root}/moved")
        with pytest.raises(FileNotFoundError):
            file_system.read_file(f"{root}/moved")
        total, usable = file_system.disk_space(root)
        assert total >= usable > 0
        file_system.start_sync()

    def test_files_opened_as_directories(self, disk: tuple[FileSystem, str]) -> None:
        file_system, root = disk
        file_system.create(f"{root}/f")
        with pytest.raises(NotADirectoryError):
            file_system.list_dir(f"{root}/f")


class TestLinks:
    """Entries of a directory other than files and directories, as Java's `isFile` and `isDirectory` see them."""

    def test_what_leads_nowhere_is_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"abc")
        (tmp_path / "linked").symlink_to("file")
        (tmp_path / "directory").symlink_to(".")
        (tmp_path / "dangling").symlink_to("nowhere")
        (tmp_path / "circle").symlink_to("circle")
        (tmp_path / "below-a-file").symlink_to("file/below")
        os.mkfifo(tmp_path / "pipe")
        found = {info.name: (info.size, info.is_dir) for info in OsFileSystem().list_dir(str(tmp_path))}
        assert found == {"file": (3, False), "linked": (3, False), "directory": (0, True)}

    def test_what_goes_while_it_is_listed_is_left_out(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "kept").touch()
        (tmp_path / "gone").touch()
        scandir = os.scandir

        def removing(path: str) -> contextlib.AbstractContextManager[Iterator[os.DirEntry[str]]]:
            with scandir(path) as scan:
                entries = list(scan)
            (tmp_path / "gone").unlink()
            return contextlib.nullcontext(iter(entries))

        monkeypatch.setattr(os, "scandir", removing)
        assert [info.name for info in OsFileSystem().list_dir(str(tmp_path))] == ["kept"]

    def test_a_linked_directory_is_removed(self, tmp_path: Path) -> None:
        other_disk = tmp_path / "other-disk"
        other_disk.mkdir()
        (other_disk / "file").touch()
        (other_disk / "dangling").symlink_to("nowhere")
        (tmp_path / "t-0").symlink_to(other_disk)
        OsFileSystem().remove_tree(str(tmp_path / "t-0"))
        assert [each.name for each in tmp_path.iterdir()] == ["other-disk"]
        assert list(other_disk.iterdir()) == []


class TestOperatingSystem:
    def test_descriptors_are_bounded(self, tmp_path: Path) -> None:
        file_system = OsFileSystem(max_open_files=8)
        files = [file_system.open(str(tmp_path / str(number))) for number in range(50)]
        for turn in range(3):
            for number, file in enumerate(files):
                file.append([b"%d-%d " % (turn, number)])
                assert file_system.open_file_count <= 8
        for number, file in enumerate(files):
            assert file.pread(0, 100) == b"".join(b"%d-%d " % (turn, number) for turn in range(3))
            file.flush()
        if sys.platform == "linux":
            assert sum(link.startswith(str(tmp_path)) for link in map(target_of, os.listdir("/proc/self/fd"))) <= 8

    def test_descriptors_are_bounded_when_threads_find_the_same_last_place(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file_system = OsFileSystem(max_open_files=8)
        open_files = [file_system.open(str(tmp_path / str(number))) for number in range(7)]
        others = [file_system.attach(str(tmp_path / "0"), 0) for _ in range(4)]
        all_have_found_it, real = threading.Barrier(4, timeout=30), os.open

        def opened(*arguments: Any) -> int:
            all_have_found_it.wait()
            return real(*arguments)

        with ThreadPoolExecutor(4) as pool, monkeypatch.context() as patched:
            patched.setattr(os, "open", opened)
            assert list(pool.map(lambda file: file.pread(0, 9), others)) == [b""] * 4
        assert file_system.open_file_count <= 8
        # Every open file is counted.
        assert sum(file._descriptor is not None for file in (*open_files, *others)) == file_system.open_file_count

    def test_a_file_in_use_stays_open(self, tmp_path: Path) -> None:
        file_system = OsFileSystem(max_open_files=8)
        busy = file_system.open(str(tmp_path / "busy"))
        descriptor = busy._descriptor
        for number in range(100):
            busy.append([b"x"])
            file_system.open(str(tmp_path / str(number)))
        assert busy._descriptor is descriptor

    def test_more_files_than_the_process_may_open(self, tmp_path: Path) -> None:
        script = (
            "import resource, sys; sys.path.insert(0, '.')\n"
            "from storage.io.os_file_system import OsFileSystem\n"
            "file_system = OsFileSystem(max_open_files=10_000)\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
            f"files = [file_system.open('{tmp_path}/%d' % n) for n in range(300)]\n"
            "[file.append([b'%d' % n]) for n, file in enumerate(files)]\n"
            "assert all(file.pread(0, 9) == b'%d' % n for n, file in enumerate(files))\n"
            "print('fine')\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == "fine\n", done.stderr

    def test_default_limit_leaves_room_for_connections(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert OsFileSystem().max_open_files <= max(soft // 2, 8)

    def test_short_writes_go_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.pwritev
        monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real(fd, [memoryview(parts[0])[:2]], at))
        file = OsFileSystem().open(str(tmp_path / "f"))
        file.append([b"abc", b"def", b"g"])
        assert file.pread(0, 99) == b"abcdefg"

    def test_portable_branches(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_HAS_PWRITEV", False)
        file_system = OsFileSystem()
        file_system.can_read_without_waiting = False
        file = file_system.open(str(tmp_path / "f"))
        file.append([b"abc", b"def"])
        assert file.try_pread(1, 3) == b"bcd"
        buffer = bytearray(3)
        assert file.try_pread_into(4, buffer) == 2
        assert buffer == b"ef\0"

    def test_what_lies_behind_the_last_append_is_not_read(self, tmp_path: Path) -> None:
        file = OsFileSystem().open(str(tmp_path / "f"))
        file.append([b"abc"])
        (tmp_path / "f").write_bytes(b"abcXX")
        assert file.try_pread(1, 4) == b"bc"

    def test_file_system_without_nowait(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file_system = OsFileSystem()
        file = file_system.open(str(tmp_path / "f"))
        file.append([b"abc"])

        def refuse(*_: object) -> int:
            raise OSError(errno.EOPNOTSUPP, "not here")

        monkeypatch.setattr(os, "preadv", refuse)
        assert file.try_pread(0, 3) == b"abc"
        assert not file_system.can_read_without_waiting

    @pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT") or not hasattr(os, "posix_fadvise"), reason="needs Linux")
    def test_cold_pages_are_not_waited_for(self, tmp_path: Path) -> None:
        file_system = OsFileSystem()
        file = file_system.open(str(tmp_path / "f"))
        file.append([b"x" * (1 << 20)])
        file.flush()
        assert file._descriptor is not None
        os.posix_fadvise(file._descriptor.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        # Only once: a failed try may make the disk read ahead.
        try:
            reader_of(file, may_wait=False)(0, 1 << 20)
        except WouldWaitError:
            pass
        else:
            pytest.skip("this file system keeps or reads the pages at once")
        os.posix_fadvise(file._descriptor.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert file.try_pread_into(0, bytearray(1 << 20)) is None
        assert len(reader_of(file, may_wait=True)(0, 1 << 20)) == 1 << 20
        assert file.try_pread(0, 1 << 20) == b"x" * (1 << 20)

    def test_lock_is_seen_by_other_processes(self, tmp_path: Path) -> None:
        path = str(tmp_path / ".lock")
        lock = OsFileSystem().lock(path)
        script = (
            "import sys; sys.path.insert(0, '.')\nfrom storage.io.os_file_system import OsFileSystem\n"
            f"try:\n    OsFileSystem().lock('{path}')\n    print('free')\nexcept BlockingIOError:\n    print('taken')\n"
        )
        command = [sys.executable, "-c", script]
        assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "taken\n"
        lock.release()
        assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "free\n"

    def test_fsync_failure_is_passed_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = OsFileSystem().open(str(tmp_path / "f"))
        file.append([b"x"])

        def fail(_: int) -> None:
            raise OSError(errno.EIO, "gone")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="gone"):
            file.flush()
        assert file.unsynced


class TestMemory:
    def disk(self) -> MemoryFileSystem:
        file_system = MemoryFileSystem()
        file_system.make_dir("/d")
        file_system.sync_dir("/")
        return file_system

    def test_nothing_but_synced_survives(self) -> None:
        file_system = self.disk()
        kept = file_system.open("/d/kept")
        kept.append([b"synced"])
        kept.flush()
        file_system.open("/d/nameless").flush()
        file_system.sync_dir("/d")
        kept.append([b" and not"])
        file_system.create("/d/new")
        file_system.remove("/d/nameless")
        file_system.cut_power(PowerCut.LOSE, lambda count: 0)
        assert {info.name: info.size for info in file_system.list_dir("/d")} == {"kept": 6, "nameless": 0}

    def test_process_death_loses_nothing(self) -> None:
        file_system = self.disk()
        file_system.open("/d/f").append([b"abc"])
        file_system.lock("/d/.lock")
        with pytest.raises(BlockingIOError):
            file_system.lock("/d/.lock")
        file_system.kill_process()
        assert file_system.read_file("/d/f") == b"abc"
        file_system.lock("/d/.lock")

    def test_torn_at_512_bytes(self) -> None:
        sizes = set()
        for cut in range(4):
            file_system = self.disk()
            file = file_system.open("/d/f")
            file_system.sync_dir("/d")
            file.append([b"x" * 100])
            file.flush()
            file.append([b"y" * 1400])
            file_system.cut_power(PowerCut.TEAR, choosing(0, cut))
            sizes.add(len(file_system.read_file("/d/f")))
        assert sizes == {100, 512, 1024}

    def test_reordered_sectors_leave_holes(self) -> None:
        file_system = self.disk()
        file = file_system.open("/d/f")
        file_system.sync_dir("/d")
        file.append([b"a" * 512 + b"b" * 512 + b"c" * 10])
        file_system.cut_power(PowerCut.REORDER, choosing(0, 1, 1))
        assert file_system.read_file("/d/f") == bytes(512) + b"b" * 512 + b"c" * 10

    def test_faults(self) -> None:
        file_system = self.disk()
        file = file_system.open("/d/f")
        file_system.inject = lambda operation, path: Fault(errno.ENOSPC, written_bytes=2)
        with pytest.raises(OSError, match="ENOSPC"):
            file.append([b"abc"])
        assert (file.size, file_system.read_file("/d/f")) == (0, b"ab")
        file_system.inject = lambda operation, path: Fault(crash_before=True)
        with pytest.raises(SimulatedCrash):
            file.append([b"abc"])
        file_system.inject = lambda operation, path: Fault(crash_after=True)
        with pytest.raises(SimulatedCrash):
            file.append([b"xyz"])
        assert file_system.read_file("/d/f") == b"xyz"

    def test_full(self) -> None:
        file_system = self.disk()
        file_system.capacity_bytes = 5
        file = file_system.open("/d/f")
        file.append([b"abc"])
        with pytest.raises(OSError, match="ENOSPC"):
            file.append([b"defg"])
        assert (file.size, file_system.disk_space("/d")) == (3, (5, 0))
        file.truncate(3)
        with pytest.raises(OSError, match="ENOSPC"):
            file_system.write_file("/d/g", b"long")
