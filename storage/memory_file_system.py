"""A disk in memory that can fail and lose power: what tests and simulated clusters put in the place of
`OsFileSystem`.

The model is a pessimistic reading of POSIX. Data is durable once its file was fsynced, a name once its directory was;
until then each write of 512 bytes may survive a power cut or not, on its own. Names change in order within a
directory, because file systems journal them. Process death loses nothing. A failed fsync loses what it was to save:
the kernel drops such pages and calls the next fsync a success. Only the next process may save them (kinder than Linux
is: nothing but writing them again would help there).

Every call can be made to fail: `inject` is asked before each and may answer with a Fault.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from storage.file_system import FileInfo

SECTOR_BYTES = 512
_READING = frozenset({"exists", "list_dir", "read_file", "pread", "try_pread", "disk_space", "attach"})
_WRITING = frozenset({"append", "write_file"})


class SimulatedCrash(BaseException):
    """The process died at this call. Not an Exception, so that no handler takes it for an error to deal with."""


class PowerCut(Enum):
    """What becomes of data and names that were not fsynced."""

    LOSE = "lose"
    """All of it is gone."""
    TEAR = "tear"
    """Per file, the first changes are there, and the last of them is cut at a multiple of 512 bytes."""
    REORDER = "reorder"
    """Each change of 512 bytes is there or not; of the names in a directory, the first changes are."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call: `errno` to be raised (0: none), after `written_bytes` of what it writes reached the
    file; or the death of the process before it, after it, or once those bytes were written (before a call that writes
    none).
    """

    errno: int = 0
    written_bytes: int = 0
    crash_before: bool = False
    crash_after: bool = False
    crash_amid: bool = False


@dataclass(slots=True, eq=False)
class _Inode:
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(position, data) written, or (size, None) cut, since the last fsync."""
    modified_ms: int = 0
    is_behind: bool = False
    """Whether a failed fsync dropped changes that `content` still shows."""

    def write(self, position: int, data: bytes) -> None:
        if position > len(self.content):
            self.content.extend(bytes(position - len(self.content)))
        self.content[position : position + len(data)] = data
        self.pending.append((position, data))

    def cut(self, size: int) -> None:
        del self.content[size:]
        self.pending.append((size, None))

    def sync(self) -> None:
        self.durable = bytes(self._durable_with(self.pending) if self.is_behind else self.content)
        self.pending = []

    def fail_to_sync(self) -> None:
        self.is_behind = self.is_behind or bool(self.pending)
        self.pending = []

    def forgive(self) -> None:
        """A new process may save what a failed fsync dropped."""
        if self.is_behind:
            self.is_behind = False
            self.pending = [(len(self.content), None), (0, bytes(self.content))]

    def lose_power(self, mode: PowerCut, choose: Callable[[int], int]) -> None:
        self.content = self._durable_with(self._survivors(mode, choose))
        self.is_behind = False
        self.sync()

    def _durable_with(self, changes: Iterable[tuple[int, bytes | None]]) -> bytearray:
        content = bytearray(self.durable)
        for position, data in changes:
            if data is None:
                del content[position:]
            else:
                if position > len(content):
                    content.extend(bytes(position - len(content)))
                content[position : position + len(data)] = data
        return content

    def _survivors(self, mode: PowerCut, choose: Callable[[int], int]) -> Iterator[tuple[int, bytes | None]]:
        if mode is PowerCut.LOSE or not self.pending:
            return
        if mode is PowerCut.TEAR:
            count = choose(len(self.pending) + 1)
            yield from self.pending[:count]
            if count < len(self.pending):
                position, data = self.pending[count]
                if data is not None:
                    sectors = choose(len(data) // SECTOR_BYTES + 1)
                    # Sectors are aligned on the disk, not to where the write began.
                    end = max((position // SECTOR_BYTES + sectors) * SECTOR_BYTES - position, 0)
                    yield position, data[:end]
            return
        for position, data in self.pending:
            if data is None:
                if choose(2):
                    yield position, None
                continue
            at = 0
            while at < len(data):
                end = min(len(data), ((position + at) // SECTOR_BYTES + 1) * SECTOR_BYTES - position)
                if choose(2):
                    yield position + at, data[at:end]
                at = end


@dataclass(slots=True, eq=False)
class _Directory:
    children: dict[str, _Inode | _Directory] = field(default_factory=dict)
    durable: dict[str, _Inode | _Directory] = field(default_factory=dict)
    pending: list[dict[str, _Inode | _Directory | None]] = field(default_factory=list)
    """Changes of names since the last fsync; each is atomic, and sets names to what they denote (None: removed)."""
    modified_ms: int = 0

    def change(self, change: dict[str, _Inode | _Directory | None]) -> None:
        self.pending.append(change)
        _apply(self.children, change)

    def sync(self) -> None:
        self.durable = dict(self.children)
        self.pending = []

    def lose_power(self, mode: PowerCut, choose: Callable[[int], int]) -> None:
        children = dict(self.durable)
        if mode is not PowerCut.LOSE:
            for change in self.pending[: choose(len(self.pending) + 1)]:
                _apply(children, change)
        self.children = children
        self.sync()
        for child in children.values():
            child.lose_power(mode, choose)


def _apply(children: dict[str, _Inode | _Directory], change: dict[str, _Inode | _Directory | None]) -> None:
    for name, node in change.items():
        if node is None:
            children.pop(name, None)
        else:
            children[name] = node


class MemoryFile:
    """A file of a MemoryFileSystem; see `storage.file_system.File` for what each call promises."""

    __slots__ = ("_file_system", "_inode", "path", "size", "unsynced")

    def __init__(self, file_system: MemoryFileSystem, path: str, inode: _Inode | None, size: int) -> None:
        self._file_system = file_system
        self._inode = inode
        self.path = path
        self.size = size
        self.unsynced = True

    def _open(self) -> _Inode:
        inode = self._inode
        if inode is None:
            inode = self._inode = self._file_system._file_at(self.path)
        return inode

    def append(self, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        data = b"".join(parts)
        file_system = self._file_system
        with file_system._call("append", self.path) as fault:
            inode = self._open()
            self.unsynced = True
            file_system._write(self.path, inode, self.size, data, fault)
            self.size += len(data)

    def pread(self, position: int, size: int) -> bytes:
        with self._file_system._call("pread", self.path):
            return bytes(self._open().content[position : position + size])

    def try_pread(self, position: int, size: int) -> bytes | None:
        with self._file_system._call("try_pread", self.path):
            if self._file_system.is_cold(self.path, position):
                return None
            return bytes(self._open().content[position : position + size])

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
        fault = self._fault = self._file_system._next_fault(self._operation, self._path)
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


class MemoryFileSystem:
    """See the module's docstring; `storage.file_system.FileSystem` says what each call promises.

    `inject(operation, path)` is asked before every call that changes or syncs something (with `faults_in_reads`
    before the others too) and may return a Fault. `capacity_bytes` makes the disk full there. `is_cold(path,
    position)` says whether `try_pread` would have to wait.
    """

    def __init__(self) -> None:
        self._root = _Directory()
        self._locks: set[str] = set()
        self.inject: Callable[[str, str], Fault | None] = lambda _operation, _path: None
        self.faults_in_reads = False
        self.is_cold: Callable[[str, int], bool] = lambda _path, _position: False
        self.capacity_bytes: int | None = None
        self.now_ms = 0

    # -- faults -------------------------------------------------------------------------------------------------------

    def _call(self, operation: str, path: str) -> _Call:
        return _Call(self, operation, path)

    def _next_fault(self, operation: str, path: str) -> Fault | None:
        if operation in _READING and not self.faults_in_reads:
            return None
        return self.inject(operation, path)

    def _room_for(self, length: int, inode: _Inode, position: int) -> int:
        if self.capacity_bytes is None:
            return length
        growth = max(position + length - len(inode.content), 0)
        missing = max(growth - (self.capacity_bytes - self.used_bytes), 0)
        return max(length - missing, 0)

    def _write(self, path: str, inode: _Inode, position: int, data: bytes, fault: Fault | None) -> None:
        """As much of `data` as the disk has room for and `fault` lets through. Raises OSError when that is not all."""
        allowed = self._room_for(len(data), inode, position)
        is_stopped = fault is not None and (fault.crash_amid or fault.errno != 0)
        if fault is not None and is_stopped:
            # A disk that has taken everything was not full.
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

    def _sync(self, operation: str, path: str, inode: _Inode) -> None:
        try:
            with self._call(operation, path):
                inode.sync()
        except OSError:
            inode.fail_to_sync()
            raise

    def copy(self) -> MemoryFileSystem:
        """The same disk once more, neither locked nor about to fail: to see what several ends make of one life."""
        twin = MemoryFileSystem()
        twin._root = _copy_directory(self._root, {})
        twin.capacity_bytes = self.capacity_bytes
        twin.now_ms = self.now_ms
        return twin

    @property
    def used_bytes(self) -> int:
        """Bytes in all files."""
        return sum(len(inode.content) for inode in _files_below(self._root))

    def kill_process(self) -> None:
        """The process is gone, the machine is not: locks are free, nothing is lost."""
        self._locks = set()
        self.inject = lambda _operation, _path: None
        self._end_process()

    def _end_process(self) -> None:
        for inode in _files_below(self._root):
            inode.forgive()

    def cut_power(self, mode: PowerCut, choose: Callable[[int], int]) -> None:
        """The machine is gone: what was not fsynced is subject to `mode`. `choose(n)` gives a number from 0 to n-1."""
        self._locks = set()
        self.inject = lambda _operation, _path: None
        self._root.lose_power(mode, choose)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _find(self, path: str) -> _Inode | _Directory | None:
        node: _Inode | _Directory = self._root
        for name in path.split("/"):
            if not name:
                continue
            if not isinstance(node, _Directory) or name not in node.children:
                return None
            node = node.children[name]
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        head, _, name = path.rstrip("/").rpartition("/")
        parent = self._find(head)
        if not isinstance(parent, _Directory):
            raise _os_error(errno.ENOENT, path)
        return parent, name

    def _file_at(self, path: str) -> _Inode:
        node = self._find(path)
        if node is None:
            raise _os_error(errno.ENOENT, path)
        if isinstance(node, _Directory):
            raise _os_error(errno.EISDIR, path)
        return node

    def _directory_at(self, path: str) -> _Directory:
        node = self._find(path)
        if node is None:
            raise _os_error(errno.ENOENT, path)
        if not isinstance(node, _Directory):
            raise _os_error(errno.ENOTDIR, path)
        return node

    def _file_or_new(self, path: str) -> _Inode:
        node = self._find(path)
        if isinstance(node, _Inode):
            return node
        parent, name = self._parent(path)
        inode = _Inode(modified_ms=self.now_ms)
        parent.change({name: inode})
        return inode

    # -- the FileSystem contract --------------------------------------------------------------------------------------

    def open(self, path: str) -> MemoryFile:
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
                    len(node.content) if isinstance(node, _Inode) else 0,
                    node.modified_ms,
                    isinstance(node, _Directory),
                )
                for name, node in self._directory_at(path).children.items()
            ]

    def make_dir(self, path: str) -> None:
        with self._call("make_dir", path):
            parent, name = self._parent(path)
            if name in parent.children:
                raise _os_error(errno.EEXIST, path)
            parent.change({name: _Directory(modified_ms=self.now_ms)})

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
            if isinstance(node, _Directory) and new_name in new_parent.children:
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
            if isinstance(node, _Directory):
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
            total = 1 << 40 if self.capacity_bytes is None else self.capacity_bytes
            return total, max(total - self.used_bytes, 0)

    def lock(self, path: str) -> _MemoryLock:
        with self._call("lock", path):
            if path in self._locks:
                raise BlockingIOError(errno.EAGAIN, "locked by another process", path)
            self._file_or_new(path)
            self._locks.add(path)
            return _MemoryLock(self, path)


def _copy_directory(directory: _Directory, copies: dict[int, _Inode | _Directory]) -> _Directory:
    """A copy in which, as in the original, names and changes may mean the same file; `copies` are those made so far."""

    def copy_of(node: _Inode | _Directory) -> _Inode | _Directory:
        known = copies.get(id(node))
        if known is None:
            if isinstance(node, _Directory):
                return _copy_directory(node, copies)
            known = copies[id(node)] = replace(node, content=bytearray(node.content), pending=list(node.pending))
        return known

    twin = copies[id(directory)] = _Directory(modified_ms=directory.modified_ms)
    twin.children = {name: copy_of(node) for name, node in directory.children.items()}
    twin.durable = {name: copy_of(node) for name, node in directory.durable.items()}
    twin.pending = [
        {name: None if node is None else copy_of(node) for name, node in change.items()} for change in directory.pending
    ]
    return twin


def _files_below(directory: _Directory) -> Iterator[_Inode]:
    for node in directory.children.values():
        if isinstance(node, _Directory):
            yield from _files_below(node)
        else:
            yield node
