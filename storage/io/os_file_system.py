"""FileSystem on the operating system: descriptors under a shared limit, and reads that refuse to wait."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import stat
from collections import OrderedDict
from collections.abc import Callable, Sequence
from io import FileIO
from typing import TypeVar

from storage.io.file_system import Bytes, FileInfo

T = TypeVar("T")


class _Descriptor:
    """An open descriptor that is closed with its last reference.

    A caller holds a reference during its system call, so eviction by another thread can never close a descriptor that
    is in use (and the kernel cannot reuse its number); no lock is needed.
    """

    __slots__ = ("_close", "fd", "recently_used")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.recently_used = False
        self._close = os.close

    def __del__(self) -> None:
        self._close(self.fd)


_FLAGS = os.O_RDWR | os.O_CLOEXEC
_HAS_PWRITEV = hasattr(os, "pwritev")
_MAX_PARTS = 1024  # IOV_MAX on Linux and macOS
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_CANNOT_TELL = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_FULL_FSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def _fsync(fd: int) -> None:
    """Fsync to the medium: macOS' fsync leaves the data in the drive's cache, its F_FULLFSYNC does not."""
    if _FULL_FSYNC is not None:
        try:
            fcntl.fcntl(fd, _FULL_FSYNC)
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}:
                raise
        else:
            return
    os.fsync(fd)


class OsFile:
    """A File whose descriptor is opened on use, and which `OsFileSystem` may close at any time to stay within its
    limit.
    """

    __slots__ = ("_descriptor", "_files", "_is_moving", "path", "size", "unsynced")

    def __init__(self, files: OsFileSystem, path: str, size: int) -> None:
        self._files = files
        self._descriptor: _Descriptor | None = None
        self._is_moving = False
        self.path = path
        self.size = size
        self.unsynced = True

    def _open(self) -> _Descriptor:
        while True:
            path = self.path
            try:
                descriptor = self._files._open_descriptor(path, _FLAGS)
            except FileNotFoundError:
                if not self._is_moving and self.path == path:
                    raise
                continue  # the owner is renaming it, on another thread
            if self.path == path:  # otherwise another file may have the name by now
                self._files._hold(self, descriptor)
                return descriptor

    def append(self, parts: Sequence[Bytes]) -> None:
        descriptor = self._descriptor or self._open()
        descriptor.recently_used = True
        self.unsynced = True
        total = 0
        for part in parts:
            total += len(part)
        position = self.size
        written = os.pwritev(descriptor.fd, parts, position) if _HAS_PWRITEV and len(parts) <= _MAX_PARTS else 0
        if written != total:
            self._append_rest(descriptor, parts, written)
        self.size = position + total

    def _append_rest(self, descriptor: _Descriptor, parts: Sequence[Bytes], written: int) -> None:
        """Write what is left after a short write; a full disk shows itself here as OSError."""
        position = self.size + written
        for part in parts:
            if written >= len(part):
                written -= len(part)
                continue
            rest = memoryview(part)[written:]
            written = 0
            while rest:
                count = os.pwrite(descriptor.fd, rest, position)
                position += count
                rest = rest[count:]

    def pread(self, position: int, size: int) -> bytes:
        descriptor = self._descriptor or self._open()
        descriptor.recently_used = True
        data = os.pread(descriptor.fd, size, position)
        if len(data) < size and position + len(data) < self.size:
            pieces = [data]
            position += len(data)
            size -= len(data)
            while size > 0 and (data := os.pread(descriptor.fd, size, position)):
                pieces.append(data)
                position += len(data)
                size -= len(data)
            return b"".join(pieces)
        return data

    def try_pread(self, position: int, size: int) -> bytes | bytearray | None:
        data = bytearray(min(size, max(self.size - position, 0)))
        return data if self.try_pread_into(position, data) == len(data) else None

    def try_pread_into(self, position: int, buffer: bytearray | memoryview) -> int | None:
        size = len(buffer)
        if position + size > self.size:  # bytes after it may be left over from a failed append
            size = max(self.size - position, 0)
            buffer = memoryview(buffer)[:size]
        if self._files.can_read_without_waiting:
            descriptor = self._descriptor or self._open()
            descriptor.recently_used = True
            try:
                count = os.preadv(descriptor.fd, (buffer,), position, _NOWAIT)
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno not in _CANNOT_TELL:
                    raise
                self._files.can_read_without_waiting = False
            else:
                return count if count == size else None
        data = self.pread(position, size)
        buffer[: len(data)] = data
        return len(data)

    def truncate(self, size: int) -> None:
        descriptor = self._descriptor or self._open()
        self.unsynced = True
        os.ftruncate(descriptor.fd, size)
        self.size = size

    def flush(self) -> None:
        # After an eviction this opens the file again: fsync works on the inode, so no dirty page is missed.
        descriptor = self._descriptor or self._open()
        self.unsynced = False  # before, not after: the fsync may not cover concurrent appends
        try:
            _fsync(descriptor.fd)
        except OSError:
            self.unsynced = True
            raise

    def rename(self, path: str) -> None:
        self._is_moving = True
        try:
            os.replace(self.path, path)
            self.path = path
        finally:
            self._is_moving = False

    def close(self) -> None:
        self._files._forget(self)
        self._descriptor = None


class _OsLock:
    __slots__ = ("_descriptor", "_held", "_identity")

    def __init__(self, descriptor: _Descriptor, held: set[tuple[int, int]]) -> None:
        self._descriptor: _Descriptor | None = descriptor
        self._held = held
        self._identity = _identity(os.fstat(descriptor.fd))
        held.add(self._identity)

    def release(self) -> None:
        self._descriptor = None
        self._held.discard(self._identity)


def _identity(status: os.stat_result) -> tuple[int, int]:
    """The identity of a file, whatever its names."""
    return status.st_dev, status.st_ino


class OsFileSystem:
    """FileSystem on the operating system, holding at most `max_open_files` descriptors of Files at a time.

    Default limit: half of the process' soft RLIMIT_NOFILE (the other half is for connections), at most 8192. Which
    descriptor to close is decided by second chance (a clock), which costs the hot path one attribute store.
    """

    def __init__(self, max_open_files: int | None = None) -> None:
        if max_open_files is None:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            max_open_files = 8192 if soft == resource.RLIM_INFINITY else min(8192, soft // 2)
        self.max_open_files = max(max_open_files, 8)
        self.can_read_without_waiting = _NOWAIT != 0 and hasattr(os, "preadv")
        self._open_files: OrderedDict[OsFile, None] = OrderedDict()
        self._locked: set[tuple[int, int]] = set()

    @property
    def open_file_count(self) -> int:
        """The number of descriptors now open for Files."""
        return len(self._open_files)

    def _open_descriptor(self, path: str, flags: int, mode: int = 0o644) -> _Descriptor:
        self._make_room(self.max_open_files - 1)
        return _Descriptor(self._opened(os.open, path, flags, mode))

    def _hold(self, file: OsFile, descriptor: _Descriptor) -> None:
        # The order matters: every open descriptor is counted, even if another thread evicts meanwhile.
        file._descriptor = descriptor
        self._open_files[file] = None
        self._make_room(self.max_open_files)  # several threads may have taken the last free place

    def _make_room(self, count: int) -> None:
        while len(self._open_files) > count:
            self._evict_one()

    def _opened(self, opening: Callable[..., T], *arguments: object) -> T:
        """The descriptor that `opening` opens. When connections have used up the descriptors, half of those held for
        Files are closed first: this is not a disk failure.
        """
        try:
            return opening(*arguments)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
        for _ in range(len(self._open_files) // 2 + 1):
            self._evict_one()
        return opening(*arguments)

    def _evict_one(self) -> None:
        for _ in range(len(self._open_files) + 1):
            try:
                file, _value = self._open_files.popitem(last=False)
            except KeyError:  # another thread was faster
                return
            descriptor = file._descriptor
            if descriptor is None:
                return
            if not descriptor.recently_used:
                file._descriptor = None
                return
            descriptor.recently_used = False
            self._open_files[file] = None

    def _forget(self, file: OsFile) -> None:
        self._open_files.pop(file, None)

    def _new_file(self, path: str, size: int) -> OsFile:
        return OsFile(self, path, size)

    def open(self, path: str, *, is_private: bool = False) -> OsFile:
        file = self._new_file(path, 0)
        descriptor = self._open_descriptor(path, _FLAGS | os.O_CREAT, 0o600 if is_private else 0o644)
        self._hold(file, descriptor)
        file.size = os.fstat(descriptor.fd).st_size
        return file

    def attach(self, path: str, size: int) -> OsFile:
        return self._new_file(path, size)

    def create(self, path: str) -> None:
        os.close(self._opened(os.open, path, _FLAGS | os.O_CREAT, 0o644))

    def read_file(self, path: str) -> bytes:
        with self._opened(FileIO, path) as file:
            return file.readall()

    def write_file(self, path: str, data: bytes) -> None:
        fd = self._opened(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def list_dir(self, path: str) -> list[FileInfo]:
        entries = []
        with self._opened(os.scandir, path) as scan:
            for entry in scan:
                try:
                    info = entry.stat()
                except OSError as error:
                    # A broken link, or the entry was removed after the directory was read.
                    if isinstance(error, FileNotFoundError) or entry.is_symlink():
                        continue
                    raise
                is_dir = stat.S_ISDIR(info.st_mode)
                if not is_dir and not stat.S_ISREG(info.st_mode):
                    continue
                size = 0 if is_dir else info.st_size
                entries.append(FileInfo(entry.name, size, info.st_mtime_ns // 1_000_000, is_dir))
        return entries

    def make_dir(self, path: str) -> None:
        os.mkdir(path)

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        with self._opened(os.scandir, path) as scan:
            entries = list(scan)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                self.remove_tree(entry.path)
            else:
                os.unlink(entry.path)
        if os.path.islink(path):
            os.unlink(path)
        else:
            os.rmdir(path)

    def sync_file(self, path: str) -> None:
        fd = self._opened(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _fsync(fd)
        finally:
            os.close(fd)

    def sync_dir(self, path: str) -> None:
        self.sync_file(path)

    def start_sync(self) -> None:
        os.sync()

    def disk_space(self, path: str) -> tuple[int, int]:
        space = os.statvfs(path)
        return space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize

    def lock(self, path: str) -> _OsLock:
        # A record lock does not exclude its own process, and closing any descriptor of the file would release it.
        with contextlib.suppress(FileNotFoundError):
            if _identity(os.stat(path)) in self._locked:
                raise BlockingIOError(errno.EAGAIN, "locked by this process", path)
        descriptor = _Descriptor(self._opened(os.open, path, _FLAGS | os.O_CREAT, 0o644))
        try:
            # A record lock (not flock), because that is what a JVM takes: both kinds of broker see each other.
            fcntl.lockf(descriptor.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except PermissionError:  # POSIX allows EACCES for "taken"
            raise BlockingIOError(errno.EAGAIN, "locked by another process", path) from None
        return _OsLock(descriptor, self._locked)
