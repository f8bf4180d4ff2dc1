"""A disk in memory, and the part of it that survives a power failure.

The model is a pessimistic reading of POSIX. Data is durable once its file was fsynced, a name once its directory was;
until then each write of 512 bytes may survive a power cut or not, on its own. Names change in order within a directory,
because file systems journal them. A failed fsync loses its data: the kernel drops such pages and reports success for
the next fsync. Only the next process may save them (kinder than Linux, where only writing them again would help).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

SECTOR_BYTES = 512


class PowerCut(Enum):
    """The fate of data and names that were not fsynced."""

    LOSE = "lose"
    """All of it is lost."""
    TEAR = "tear"
    """Per file, the first changes survive, and the last of them is cut at a multiple of 512 bytes."""
    REORDER = "reorder"
    """Each change of 512 bytes survives or not; of the names in a directory, the first changes survive."""


@dataclass(slots=True, eq=False)
class Inode:
    """A file: its current content, and the part of it that survives a power cut."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(position, data) for a write, or (size, None) for a truncation, since the last fsync."""
    modified_ms: int = 0
    is_behind: bool = False
    """Whether a failed fsync dropped changes that `content` still shows."""

    def write(self, position: int, data: bytes) -> None:
        """Write at a position; a gap after the old end is filled with zeros."""
        if position > len(self.content):
            self.content.extend(bytes(position - len(self.content)))
        self.content[position : position + len(data)] = data
        self.pending.append((position, data))

    def cut(self, size: int) -> None:
        """Drop everything from `size` on."""
        del self.content[size:]
        self.pending.append((size, None))

    def sync(self) -> None:
        """Make the present data durable."""
        self.durable = bytes(self._durable_with(self.pending) if self.is_behind else self.content)
        self.pending = []

    def fail_to_sync(self) -> None:
        """Lose the unsaved data; the loss stays hidden until the power fails."""
        self.is_behind = self.is_behind or bool(self.pending)
        self.pending = []

    def forgive(self) -> None:
        """Let a new process save the data that a failed fsync dropped."""
        if self.is_behind:
            self.is_behind = False
            self.pending = [(len(self.content), None), (0, bytes(self.content))]

    def lose_power(self, mode: PowerCut, choose: Callable[[int], int]) -> None:
        """As `MemoryFileSystem.cut_power`."""
        self.content = self._durable_with(self._latest_offsets(mode, choose))
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

    def _latest_offsets(self, mode: PowerCut, choose: Callable[[int], int]) -> Iterator[tuple[int, bytes | None]]:
        if mode is PowerCut.LOSE or not self.pending:
            return
        if mode is PowerCut.TEAR:
            count = choose(len(self.pending) + 1)
            yield from self.pending[:count]
            if count < len(self.pending):
                position, data = self.pending[count]
                if data is not None:
                    sectors = choose(len(data) // SECTOR_BYTES + 1)
                    # Sectors are aligned on the disk, not to the start of the write.
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
class Directory:
    """The names in a directory, now and after a power cut."""

    children: dict[str, Inode | Directory] = field(default_factory=dict)
    durable: dict[str, Inode | Directory] = field(default_factory=dict)
    pending: list[dict[str, Inode | Directory | None]] = field(default_factory=list)
    """Changes of names since the last fsync. Each is atomic and maps names to inodes (None: removed)."""
    modified_ms: int = 0

    def change(self, change: dict[str, Inode | Directory | None]) -> None:
        """Apply a change of names (None: removed) atomically."""
        self.pending.append(change)
        _apply(self.children, change)

    def sync(self) -> None:
        """Make the current names survive a crash."""
        self.durable = dict(self.children)
        self.pending = []

    def lose_power(self, mode: PowerCut, choose: Callable[[int], int]) -> None:
        """Like `MemoryFileSystem.cut_power`, for everything below too."""
        children = dict(self.durable)
        if mode is not PowerCut.LOSE:
            for change in self.pending[: choose(len(self.pending) + 1)]:
                _apply(children, change)
        self.children = children
        self.sync()
        for child in children.values():
            child.lose_power(mode, choose)


def _apply(children: dict[str, Inode | Directory], change: dict[str, Inode | Directory | None]) -> None:
    for name, node in change.items():
        if node is None:
            children.pop(name, None)
        else:
            children[name] = node


def copy_directory(directory: Directory, copies: dict[int, Inode | Directory]) -> Directory:
    """Copy a directory. Names that share a file in the original share its copy; `copies` are those made so far."""

    def copy_of(node: Inode | Directory) -> Inode | Directory:
        known = copies.get(id(node))
        if known is None:
            if isinstance(node, Directory):
                return copy_directory(node, copies)
            known = copies[id(node)] = replace(node, content=bytearray(node.content), pending=list(node.pending))
        return known

    twin = copies[id(directory)] = Directory(modified_ms=directory.modified_ms)
    twin.children = {name: copy_of(node) for name, node in directory.children.items()}
    twin.durable = {name: copy_of(node) for name, node in directory.durable.items()}
    twin.pending = [
        {name: None if node is None else copy_of(node) for name, node in change.items()} for change in directory.pending
    ]
    return twin


def files_below(directory: Directory) -> Iterator[Inode]:
    """All files in `directory`, at any depth."""
    for node in directory.children.values():
        if isinstance(node, Directory):
            yield from files_below(node)
        else:
            yield node
