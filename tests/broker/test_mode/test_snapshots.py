"""Files that a broker shares with its snapshots."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.test_mode.snapshots import LinkedFileSystem, link_tree
from storage.io.os_file_system import OsFile


@pytest.fixture
def shared(tmp_path: Path) -> tuple[Path, Path]:
    """A file, and a second link to it."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    (mine / "log").write_bytes(b"before")
    link_tree(str(mine), str(theirs))
    assert os.path.samefile(mine / "log", theirs / "log")
    return mine / "log", theirs / "log"


def cut(file: OsFile) -> None:
    file.truncate(2)


def add(file: OsFile) -> None:
    file.append([b" after"])


@pytest.mark.parametrize(("change", "expected"), [(cut, b"be"), (add, b"before after")])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_change_does_not_reach_the_other_link(
    change: Callable[[OsFile], None], expected: bytes, is_open: bool, shared: tuple[Path, Path]
) -> None:
    mine, theirs = shared
    files = LinkedFileSystem(has_links=True)
    file = files.open(str(mine)) if is_open else files.attach(str(mine), 6)
    other = files.open(str(mine))
    change(file)
    assert mine.read_bytes() == expected == file.pread(0, 100)
    assert theirs.read_bytes() == b"before"
    assert other.pread(0, 2) == b"be"
    other.size = file.size
    other.append([b"!"])
    assert mine.read_bytes() == expected + b"!"
    assert theirs.read_bytes() == b"before"


def test_a_file_without_other_links_stays(tmp_path: Path) -> None:
    files = LinkedFileSystem(has_links=True)
    file = files.open(str(tmp_path / "log"))
    inode = os.stat(file.path).st_ino
    file.append([b"one"])
    assert os.stat(file.path).st_ino == inode
    os.link(file.path, tmp_path / "snapshot")
    files.snapshots += 1
    file.append([b"two"])
    assert os.stat(file.path).st_ino != inode
    assert (tmp_path / "snapshot").read_bytes() == b"one"
    assert (tmp_path / "log").read_bytes() == b"onetwo"
