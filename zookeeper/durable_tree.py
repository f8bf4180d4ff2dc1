"""The znode tree in this process, durable in one append-only file. Synchronous, so that tests can crash it anywhere.

`DurableTree` works in two steps. `apply` changes the tree and records the transaction; `flush` makes all recorded
transactions durable with one append and one fsync, and compacts the file once it has outgrown the tree. Until `flush`
has returned, the caller must not show the new state to any client. It must not apply anything while `flush` runs, which
may be in another thread. `zookeeper.embedded_ensemble` keeps these rules.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable

from environment.sliced import Sliced, never, run_to_end
from protocol.errors import detached
from storage.io.file_system import File, FileSystem, is_disk_full
from zookeeper import journal_format
from zookeeper.coordination import CoordinationError, NoSpaceError
from zookeeper.journal_format import FormatError, Restorer
from zookeeper.znode_tree import Applied, CloseSession, Transaction, ZnodeTree

JOURNAL_NAME = "odradek-coordination.journal"

_COMPACTION_FLOOR_BYTES = 1 << 20
_COMPACTION_GROWTH = 4


class JournalError(Exception):
    """The journal cannot be read or trusted. The message names the file, and the position of any damage."""


class DurableTree:
    """A ZnodeTree and its journal. Read `tree`, but change it only with `apply` and `flush`."""

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
        """Recover the tree in `directory`, or create a new one if it contains no journal.

        The torn frame of a write interrupted by a crash is truncated. Sessions that cannot be resumed are ended, so the
        ephemeral nodes of the previous process are gone. Raises JournalError for damage that no crash explains and for
        a full disk, and passes OSError on.
        """
        path = posixpath.join(directory, JOURNAL_NAME)
        exists = file_system.exists(path)
        tree, end = _recover(file_system, path) if exists else (ZnodeTree(), 0)
        # Rewriting the file also compacts it. After a crash during the very first start, it does not exist.
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
        """Apply `transaction` in memory. Raises the tree's CoordinationError, with the tree unchanged."""
        return run_to_end(self.apply_in_slices(transaction, now_ms, never))

    def apply_in_slices(
        self, transaction: Transaction, now_ms: int, should_yield: Callable[[], bool]
    ) -> Sliced[Applied]:
        """As `apply`, with a pause whenever `should_yield` says so. The tree must not be used in between."""
        zxid = self.tree.last_zxid + 1
        # Encode first: a transaction that the journal cannot store must not change the tree.
        encoded = yield from journal_format.encode_transaction(transaction, zxid, now_ms, should_yield)
        applied = yield from self.tree.apply_in_slices(transaction, zxid, now_ms, should_yield)
        self._noted.append(encoded)
        return applied

    @property
    def dirty(self) -> bool:
        """Whether an applied transaction is not durable yet."""
        return bool(self._noted)

    def flush(self) -> None:
        """Make everything applied so far durable.

        Raises NoSpaceError if the disk is full: all transactions since the last flush are undone, and the tree stays
        usable. Raises OSError; every later flush then raises it too, because neither the file nor the tree can be
        trusted to match the disk.
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
        """Drop the recorded transactions, which could not be written. Raises OSError."""
        self._file.truncate(self._file.size)
        try:
            self.tree, _ = _recover(self._file_system, self._path)
        except JournalError as error:
            raise OSError(errno.EIO, str(error)) from error
        self._noted.clear()

    def close(self) -> None:
        """Flush and close the file."""
        try:
            self.flush()
        finally:
            self._file.close()

    def _compact(self) -> None:
        try:
            _write_temporary(self._file_system, self._path, self.tree)
        except OSError:
            # The journal itself is intact: keep it, and try again once it has doubled.
            self._compact_at_bytes = 2 * self._file.size
            return
        self._file.close()
        self._file = _install(self._file_system, self._path)
        self._compact_at_bytes = _compaction_threshold(self._file.size)


def read_tree(file_system: FileSystem, directory: str) -> ZnodeTree:
    """Read the tree in `directory` without changing anything. Raises JournalError if there is none, and OSError."""
    path = posixpath.join(directory, JOURNAL_NAME)
    if not file_system.exists(path):
        raise JournalError(f"{directory} keeps no tree: there is no {JOURNAL_NAME} in it")
    return _recover(file_system, path)[0]


def write_tree(file_system: FileSystem, directory: str, tree: ZnodeTree) -> None:
    """Write the journal of a tree that `DurableTree.open` shall find in `directory`. Raises OSError."""
    path = posixpath.join(directory, JOURNAL_NAME)
    _write_temporary(file_system, path, tree)
    _install(file_system, path).close()


def _temporary(path: str) -> str:
    return path + ".tmp"


def _compaction_threshold(snapshot_bytes: int) -> int:
    return max(_COMPACTION_FLOOR_BYTES, _COMPACTION_GROWTH * snapshot_bytes)


def _write_temporary(file_system: FileSystem, path: str, tree: ZnodeTree) -> None:
    """Write a file with just `tree` next to `path`, durably. Only the owner may read it, since trees hold SCRAM keys
    and delegation tokens.
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
        if is_disk_full(error):  # free the space that it took
            file_system.remove(_temporary(path))
        raise
    finally:
        file.close()


def _install(file_system: FileSystem, path: str) -> File:
    """Replace `path` with the temporary file, durably, and return it open for appending."""
    file_system.rename(_temporary(path), path)
    file_system.sync_dir(posixpath.dirname(path))
    return file_system.open(path)


def _recover(file_system: FileSystem, path: str) -> tuple[ZnodeTree, int]:
    """The tree in the journal, and the end of its last complete frame."""
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
    """Each frame is written after its predecessor is on disk, so a complete frame behind a broken one means damage."""
    intact = journal_format.find_frame(buffer, position + 1)
    if intact is not None or not restorer.complete:
        raise JournalError(
            f"{path} is damaged at position {position}: this is not an interrupted write, as "
            + (f"an intact frame follows at position {intact}" if intact is not None else "its snapshot ends early")
        )
