"""The znode tree in this process, durable in one append-only file: synchronous, so that a test can crash it anywhere.

`DurableTree` is driven in two steps. `apply` changes the tree and notes the transaction; `flush` makes everything noted
durable with one append and one fsync, and compacts the file when it has outgrown the tree. Between `apply` and the end
of `flush` the caller shows the new state to nobody, and applies nothing while `flush` runs (it may run in another
thread). `broker.zookeeper.embedded_ensemble` keeps to that.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable

from cluster.sliced import Sliced, never, to_the_end
from cluster.zookeeper import journal_format
from cluster.zookeeper.coordination import CoordinationError, NoSpaceError
from cluster.zookeeper.journal_format import FormatError, Restorer
from cluster.zookeeper.znode_tree import Applied, CloseSession, Transaction, ZnodeTree
from protocol.errors import detached
from storage.io.file_system import File, FileSystem, is_disk_full

JOURNAL_NAME = "odradek-coordination.journal"

_COMPACTION_FLOOR_BYTES = 1 << 20
_COMPACTION_GROWTH = 4


class JournalError(Exception):
    """The journal cannot be read or trusted; the message names the file, and the position when it is damaged."""


class DurableTree:
    """A ZnodeTree and its journal. `tree` is for reading; every change goes through `apply` and `flush`."""

    def __init__(self, file_system: FileSystem, path: str, file: File, tree: ZnodeTree) -> None:
        self.tree = tree
        self._file_system = file_system
        self._path = path
        self._file = file
        self._noted: list[bytes] = []
        self._failure: OSError | None = None
        self._compact_at_bytes = _compaction_threshold(file.size)

    @classmethod
    def open(cls, file_system: FileSystem, directory: str, now_ms: int) -> DurableTree:
        """Recover the tree kept in `directory`, or begin a new one when no journal is there.

        The torn frame of a write that a crash interrupted is cut off. Sessions that cannot be resumed are ended, so the
        ephemeral nodes of the previous process are gone. Raises JournalError on damage that no crash explains, and when
        a full disk has no room for anything; OSError as it comes.
        """
        path = posixpath.join(directory, JOURNAL_NAME)
        exists = file_system.exists(path)
        tree, end = _recover(file_system, path) if exists else (ZnodeTree(), 0)
        # Writing the file anew also compacts it, and makes a crash during the very first start leave no file at all.
        try:
            _write_temporary(file_system, path, tree)
        except OSError as error:
            if not exists or not is_disk_full(error):
                raise
            file = file_system.open(path)
            file.truncate(end)
        else:
            file = _install(file_system, path)
        durable = cls(file_system, path, file, tree)
        for session_id in tree.sessions:
            if session_id not in tree.resumable:
                durable.apply(CloseSession(session_id), now_ms)
        try:
            durable.flush()
        except NoSpaceError as error:
            doing = "The disk is full, and a broker has to write a little when it starts"
            raise JournalError(f"{doing}: {error}") from error
        return durable

    def apply(self, transaction: Transaction, now_ms: int) -> Applied:
        """Carry out `transaction` in memory. Raises the tree's CoordinationError, having changed nothing."""
        return to_the_end(self.apply_in_slices(transaction, now_ms, never))

    def apply_in_slices(self, transaction: Transaction, now_ms: int, is_over: Callable[[], bool]) -> Sliced[Applied]:
        """As `apply`, with a pause whenever `is_over` says so. Nothing else may be done with the tree meanwhile."""
        zxid = self.tree.last_zxid + 1
        # Encoded first: what the journal cannot carry must not change the tree.
        encoded = yield from journal_format.encode_transaction(transaction, zxid, now_ms, is_over)
        applied = yield from self.tree.apply_in_slices(transaction, zxid, now_ms, is_over)
        self._noted.append(encoded)
        return applied

    @property
    def dirty(self) -> bool:
        """Whether something was applied that is not durable yet."""
        return bool(self._noted)

    def flush(self) -> None:
        """Make everything applied so far durable.

        Raises NoSpaceError when the disk is full: then nothing was applied since the last flush, and all goes on.
        Raises OSError; after that every later flush raises it too, because neither the file nor the tree can be trusted
        to match the disk.
        """
        if self._failure is not None:
            raise detached(self._failure)
        if not self._noted:
            return
        try:
            try:
                self._file.append([journal_format.transactions_frame(self._noted)])
            except OSError as error:
                if not is_disk_full(error):
                    raise
                self._undo()
                raise NoSpaceError(f"{self._path} cannot grow: {error}") from error
            self._file.flush()
            self._noted.clear()
            if self._file.size > self._compact_at_bytes:
                self._compact()
        except OSError as error:
            self._failure = detached(error)
            raise

    def _undo(self) -> None:
        """Forget the transactions that were noted, as they could not be written. Raises OSError."""
        self._file.truncate(self._file.size)
        try:
            self.tree, _ = _recover(self._file_system, self._path)
        except JournalError as error:
            raise OSError(errno.EIO, str(error)) from error
        self._noted.clear()

    def close(self) -> None:
        """Flush what is left and close the file."""
        try:
            self.flush()
        finally:
            self._file.close()

    def _compact(self) -> None:
        try:
            _write_temporary(self._file_system, self._path, self.tree)
        except OSError:
            # The journal itself is whole and durable: keep it, and try again when it has doubled.
            self._compact_at_bytes = 2 * self._file.size
            return
        self._file.close()
        self._file = _install(self._file_system, self._path)
        self._compact_at_bytes = _compaction_threshold(self._file.size)


def read_tree(file_system: FileSystem, directory: str) -> ZnodeTree:
    """The tree kept in `directory`, which is left as it is. Raises JournalError when there is none, OSError."""
    path = posixpath.join(directory, JOURNAL_NAME)
    if not file_system.exists(path):
        raise JournalError(f"{directory} keeps no tree: there is no {JOURNAL_NAME} in it")
    return _recover(file_system, path)[0]


def _temporary(path: str) -> str:
    return path + ".tmp"


def _compaction_threshold(snapshot_bytes: int) -> int:
    return max(_COMPACTION_FLOOR_BYTES, _COMPACTION_GROWTH * snapshot_bytes)


def _write_temporary(file_system: FileSystem, path: str, tree: ZnodeTree) -> None:
    """Write a file that holds just `tree` beside `path`, durably. Trees hold the keys of users (SCRAM) and delegation
    tokens: nobody else may read it.
    """
    if file_system.exists(_temporary(path)):
        file_system.remove(_temporary(path))
    file = file_system.open(_temporary(path), is_private=True)
    try:
        file.append([journal_format.MAGIC])
        for piece in journal_format.snapshot_frames(tree):
            file.append([piece])
        file.flush()
    except OSError as error:
        if is_disk_full(error):  # it has to give back what it took
            file_system.remove(_temporary(path))
        raise
    finally:
        file.close()


def _install(file_system: FileSystem, path: str) -> File:
    """Put the temporary file in the place of `path`, durably; gives it open for appending."""
    file_system.rename(_temporary(path), path)
    file_system.sync_dir(posixpath.dirname(path))
    return file_system.open(path)


def _recover(file_system: FileSystem, path: str) -> tuple[ZnodeTree, int]:
    """The tree in the journal, and where its last whole frame ends."""
    buffer = memoryview(file_system.read_file(path))
    if bytes(buffer[: len(journal_format.MAGIC)]) != journal_format.MAGIC:
        raise JournalError(f"{path} is not a coordination journal of this version")
    restorer = Restorer()
    position = len(journal_format.MAGIC)
    while position < len(buffer):
        parsed = journal_format.parse_frame(buffer, position)
        if parsed is None:
            _require_torn_tail(path, buffer, position, restorer)
            break
        payload, following = parsed
        try:
            restorer.feed(payload)
        except (FormatError, CoordinationError) as error:
            raise JournalError(f"{path} cannot be read at position {position}: {error}") from error
        position = following
    if not restorer.complete:
        raise JournalError(f"{path} is damaged at position {position}: its snapshot ends early")
    return restorer.tree, position


def _require_torn_tail(path: str, buffer: memoryview, position: int, restorer: Restorer) -> None:
    """A frame is written only after the one before it is on disk: a whole frame behind a broken one means damage."""
    intact = journal_format.find_frame(buffer, position + 1)
    if intact is not None or not restorer.complete:
        raise JournalError(
            f"{path} is damaged at position {position}: this is no interrupted write, as "
            + (f"an intact frame follows at position {intact}" if intact is not None else "its snapshot ends early")
        )
