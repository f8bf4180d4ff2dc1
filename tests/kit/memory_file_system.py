"""An in-memory disk that can fail and lose power; tests and simulated clusters use it instead of `OsFileSystem`.

Process death loses nothing; `tests.kit.memory_disk` defines what survives a power cut. Every call can be made to fail:
`inject` is called before each and may return a Fault.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from storage.io.file_system import Bytes, FileInfo
from tests.kit.memory_disk import Directory, Inode, PowerCut, copy_directory, files_below

_READING = frozenset({"exists", "list_dir", "read_file", "pread", "try_pread", "disk_space", "attach"})
_WRITING = frozenset({"append", "write_file"})


class SimulatedCrash(BaseException):
    """The process died at this call. Not an Exception, so that no handler takes it for an error."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one call.

    Either `errno` is raised (0: none) after `written_bytes` of the call's data reached the file, or the process dies
    before the call, after it, or once those bytes are written (if the call writes nothing: before it).
    """

    errno: int = 0
    written_bytes: int = 0
    crash_before: bool = False
    crash_after: bool = False
    crash_amid: bool = False


class MemoryFile:
    """A file of a MemoryFileSystem; `storage.io.file_system.File` documents the guarantees of each call."""

    __slots__ = ("_file_system", "_inode", "path", "size", "unsynced")

    def __init__(self, file_system: MemoryFileSystem, path: str, inode: Inode | None, size: int) -> None:
        self._file_system = file_system
        self._inode = inode
        self.path = path
        self.size = size
        self.unsynced = True

    def _open(self) -> Inode:
        inode = self._inode
        if inode is None:
            inode = self._inode = self._file_system._file_at(self.path)
        return inode

    def append(self, parts: Sequence[Bytes]) -> None:
        data = b"".join(parts)
        file_system = self._file_system
        with file_system._call("append", self.path) as fault:
            inode = self._open()
            self.unsynced = True
            file_system._write(self.path, inode, self.size, data, fault)
            self.size += len(data)

    def pread(self, position: int, size: int) -> bytes:
        with self._file_system._call("pread", self.path):
            return bytes(memoryview(self._open().content)[position : position + size])

    def try_pread(self, position: int, size: int) -> bytes | None:
        with self._file_system._call("try_pread", self.path):
            if self._file_system.is_cold(self.path, position):
                return None
            return bytes(memoryview(self._open().content)[position : position + size])

    def try_pread_into(self, position: int, buffer: bytearray | memoryview) -> int | None:
        data = self.try_pread(position, len(buffer))
        if data is not None:
            buffer[: len(data)] = data
        return None if data is None else len(data)

    def truncate(self, size: int) -> None:
        with self._file_system._call("truncate", self.path):
            self._open().cut(size)
            self.size = size
            self.unsynced = True

    def flush(self) -> None:
        self._file_system._sync("flush", self.path, self._open())
        self.unsynced = False

    def rename(self, path: str) -> None:
        self._open()
        self._file_system.rename(self.path, path)
        self.path = path

    def close(self) -> None:
        self._inode = None


class _MemoryLock:
    __slots__ = ("_file_system", "_path")

    def __init__(self, file_system: MemoryFileSystem, path: str) -> None:
        self._file_system = file_system
        self._path = path

    def release(self) -> None:
        self._file_system._locks.discard(self._path)
        self._file_system._end_process()


class _Call:
    """One call of the file system: counted, and possibly ended by a fault."""

    __slots__ = ("_fault", "_file_system", "_operation", "_path")

    def __init__(self, file_system: MemoryFileSystem, operation: str, path: str) -> None:
        self._file_system = file_system
        self._operation = operation
        self._path = path
        self._fault: Fault | None = None

    def __enter__(self) -> Fault | None:
        fault = self._fault = self._file_system.inject(self._operation, self._path)
        if fault is not None:
            writes = self._operation in _WRITING
            if fault.crash_before or (fault.crash_amid and not writes):
                raise SimulatedCrash
            if fault.errno and not writes:
                raise _os_error(fault.errno, self._path)
        return fault

    def __exit__(self, *_: object) -> None:
        if self._fault is not None and self._fault.crash_after:
            raise SimulatedCrash


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, errno.errorcode.get(number, "?"), path)


_NO_FAULT = nullcontext(None)


class MemoryFileSystem:
    """The file system of the module docstring; `storage.io.file_system.FileSystem` documents the guarantees of each
    call.

    `inject(operation, path)` is called before every call that changes or syncs something (with `faults_in_reads` before
    the others too) and may return a Fault. `capacity_bytes` makes the disk full there. `is_cold(path, position)` says
    whether `try_pread` would have to wait.
    """

    def __init__(self) -> None:
        self._root = Directory()
        self._locks: set[str] = set()
        self.inject: Callable[[str, str], Fault | None] = lambda _operation, _path: None
        self.faults_in_reads = False
        self.is_cold: Callable[[str, int], bool] = lambda _path, _position: False
        self.capacity_bytes: int | None = None
        self.now_ms = 0

    # -- faults -------------------------------------------------------------------------------------------------------

    def _call(self, operation: str, path: str) -> _Call | nullcontext[None]:
        if operation in _READING and not self.faults_in_reads:
            return _NO_FAULT
        return _Call(self, operation, path)

    def _room_for(self, length: int, inode: Inode, position: int) -> int:
        if self.capacity_bytes is None:
            return length
        growth = max(position + length - len(inode.content), 0)
        missing = max(growth - (self.capacity_bytes - self.used_bytes), 0)
        return max(length - missing, 0)

    def _write(self, path: str, inode: Inode, position: int, data: bytes, fault: Fault | None) -> None:
        """Write as much of `data` as the disk has room for and `fault` lets through. Raises OSError if that is
        not all.
        """
        allowed = self._room_for(len(data), inode, position)
        is_stopped = fault is not None and (fault.crash_amid or fault.errno != 0)
        if fault is not None and is_stopped:
            # A disk that took everything was not full.
            most = len(data) - 1 if fault.errno == errno.ENOSPC else len(data)
            allowed = max(min(allowed, fault.written_bytes, most), 0)
        if allowed:
            inode.write(position, data[:allowed])
            inode.modified_ms = self.now_ms
        if fault is not None and is_stopped:
            if fault.crash_amid:
                raise SimulatedCrash
            raise _os_error(fault.errno, path)
        if allowed < len(data):
            raise _os_error(errno.ENOSPC, path)

    def _sync(self, operation: str, path: str, inode: Inode) -> None:
        try:
            with self._call(operation, path):
                inode.sync()
        except OSError:
            inode.fail_to_sync()
            raise

    def copy(self) -> MemoryFileSystem:
        """A copy of the disk, unlocked and without pending faults: to try several endings of one run."""
        twin = MemoryFileSystem()
        twin._root = copy_directory(self._root, {})
        twin.capacity_bytes = self.capacity_bytes
        twin.now_ms = self.now_ms
        return twin

    @property
    def used_bytes(self) -> int:
        """Bytes in all files."""
        return sum(len(inode.content) for inode in files_below(self._root))

    def kill_process(self) -> None:
        """Kill the process but not the machine: locks are released, no data is lost."""
        self._locks = set()
        self.inject = lambda _operation, _path: None
        self._end_process()

    def _end_process(self) -> None:
        for inode in files_below(self._root):
            inode.forgive()

    def cut_power(self, mode: PowerCut, choose: Callable[[int], int]) -> None:
        """Cut the machine's power: unfsynced data is subject to `mode`. `choose(n)` returns a number from 0 to n-1."""
        self._locks = set()
        self.inject = lambda _operation, _path: None
        self._root.lose_power(mode, choose)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _find(self, path: str) -> Inode | Directory | None:
        node: Inode | Directory = self._root
        for name in path.split("/"):
            if not name:
                continue
            if not isinstance(node, Directory) or name not in node.children:
                return None
            node = node.children[name]
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        head, _, name = path.rstrip("/").rpartition("/")
        parent = self._find(head)
        if not isinstance(parent, Directory):
            raise _os_error(errno.ENOENT, path)
        return parent, name

    def _file_at(self, path: str) -> Inode:
        node = self._find(path)
        if node is None:
            raise _os_error(errno.ENOENT, path)
        if isinstance(node, Directory):
            raise _os_error(errno.EISDIR, path)
        return node

    def _directory_at(self, path: str) -> Directory:
        node = self._find(path)
        if node is None:
            raise _os_error(errno.ENOENT, path)
        if not isinstance(node, Directory):
            raise _os_error(errno.ENOTDIR, path)
        return node

    def _file_or_new(self, path: str) -> Inode:
        node = self._find(path)
        if isinstance(node, Inode):
            return node
        parent, name = self._parent(path)
        inode = Inode(modified_ms=self.now_ms)
        parent.change({name: inode})
        return inode

    # -- the FileSystem contract --------------------------------------------------------------------------------------

    def open(self, path: str, *, is_private: bool = False) -> MemoryFile:
        with self._call("open", path):
            inode = self._file_or_new(path)
            return MemoryFile(self, path, inode, len(inode.content))

    def attach(self, path: str, size: int) -> MemoryFile:
        return MemoryFile(self, path, None, size)

    def create(self, path: str) -> None:
        with self._call("create", path):
            self._file_or_new(path)

    def read_file(self, path: str) -> bytes:
        with self._call("read_file", path):
            return bytes(self._file_at(path).content)

    def write_file(self, path: str, data: bytes) -> None:
        with self._call("write_file", path) as fault:
            inode = self._file_or_new(path)
            inode.cut(0)
            inode.modified_ms = self.now_ms
            self._write(path, inode, 0, data, fault)

    def exists(self, path: str) -> bool:
        with self._call("exists", path):
            return self._find(path) is not None

    def modified_ms(self, path: str) -> int:
        with self._call("modified_ms", path):
            return self._file_at(path).modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        with self._call("set_modified_ms", path):
            self._file_at(path).modified_ms = modified_ms

    def list_dir(self, path: str) -> list[FileInfo]:
        with self._call("list_dir", path):
            return [
                FileInfo(
                    name,
                    len(node.content) if isinstance(node, Inode) else 0,
                    node.modified_ms,
                    isinstance(node, Directory),
                )
                for name, node in self._directory_at(path).children.items()
            ]

    def make_dir(self, path: str) -> None:
        with self._call("make_dir", path):
            parent, name = self._parent(path)
            if name in parent.children:
                raise _os_error(errno.EEXIST, path)
            parent.change({name: Directory(modified_ms=self.now_ms)})

    def make_dirs(self, path: str) -> None:
        head = path.rstrip("/").rpartition("/")[0]
        if head and not self.exists(head):
            self.make_dirs(head)
        if not self.exists(path):
            self.make_dir(path)

    def rename(self, source: str, target: str) -> None:
        with self._call("rename", source):
            parent, name = self._parent(source)
            new_parent, new_name = self._parent(target)
            if name not in parent.children:
                raise _os_error(errno.ENOENT, source)
            node = parent.children[name]
            if isinstance(node, Directory) and new_name in new_parent.children:
                raise _os_error(errno.ENOTEMPTY, target)
            if parent is new_parent:
                parent.change({name: None, new_name: node})
            else:
                new_parent.change({new_name: node})
                parent.change({name: None})

    def remove(self, path: str) -> None:
        with self._call("remove", path):
            self._file_at(path)
            parent, name = self._parent(path)
            parent.change({name: None})

    def remove_tree(self, path: str) -> None:
        for name, node in list(self._directory_at(path).children.items()):
            if isinstance(node, Directory):
                self.remove_tree(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        with self._call("remove_dir", path):
            parent, name = self._parent(path)
            parent.change({name: None})

    def sync_file(self, path: str) -> None:
        self._sync("sync_file", path, self._file_at(path))

    def sync_dir(self, path: str) -> None:
        with self._call("sync_dir", path):
            self._directory_at(path).sync()

    def start_sync(self) -> None:
        with self._call("start_sync", "/"):
            return

    def disk_space(self, path: str) -> tuple[int, int]:
        with self._call("disk_space", path):
            if self.capacity_bytes is None:
                return 1 << 40, 1 << 40
            return self.capacity_bytes, max(self.capacity_bytes - self.used_bytes, 0)

    def lock(self, path: str) -> _MemoryLock:
        with self._call("lock", path):
            if path in self._locks:
                raise BlockingIOError(errno.EAGAIN, "locked by another process", path)
            self._file_or_new(path)
            self._locks.add(path)
            return _MemoryLock(self, path)


__all__ = ["Fault", "MemoryFile", "MemoryFileSystem", "PowerCut", "SimulatedCrash"]
