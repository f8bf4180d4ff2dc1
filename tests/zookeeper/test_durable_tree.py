"""The journal: flushed transactions survive everything, unflushed ones may survive or not, but never in part."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.directory.log_directories import lock_directory
from storage.io.os_file_system import OsFileSystem
from tests.kit.memory_file_system import Fault, MemoryFileSystem, PowerCut, SimulatedCrash
from zookeeper import durable_tree as embedded
from zookeeper import journal_format
from zookeeper.coordination import Check, Create, Delete, MultiError, NoSpaceError, SetData
from zookeeper.durable_tree import JOURNAL_NAME, DurableTree, JournalError
from zookeeper.znode_tree import CloseSession, CreateSession, Multi, Resumable, Transaction, ZnodeTree

DIRECTORY = "/data"
PATH = f"{DIRECTORY}/{JOURNAL_NAME}"


def new_disk() -> MemoryFileSystem:
    disk = MemoryFileSystem()
    disk.make_dirs(DIRECTORY)
    disk.sync_dir("/")
    return disk


def contents(tree: ZnodeTree) -> dict[str, Any]:
    return {path: (node.data, node.stat()) for path, node in tree.nodes()}


def scenario() -> list[Transaction]:
    """Sessions, nodes of all kinds, and enough data to trigger a compaction."""
    session = 1
    transactions: list[Transaction] = [
        CreateSession(session),
        Multi(session, (Create("/topics"), Create("/ids"), Create("/null"), Create("/empty", b""))),
        Multi(session, (Create("/ids/0", b"me", ephemeral=True), Create("/seq_", b"", sequential=True))),
    ]
    for number in range(12):
        path = f"/topics/t{number}"
        transactions.append(Multi(session, (Create(path, bytes([number]) * 700), Check("/topics", 0))))
        transactions.append(Multi(session, (SetData(path, f"größer {number}".encode() * 20, 0),)))
        if number % 3 == 0:
            transactions.append(Multi(session, (Delete(path, 1), Create(f"{path}-again"))))
    transactions.append(CreateSession(2))
    transactions.append(CloseSession(session))
    return transactions


def states() -> list[dict[str, Any]]:
    """The tree before the first transaction and after each one."""
    tree = ZnodeTree()
    seen = [contents(tree)]
    for zxid, transaction in enumerate(scenario(), 1):
        tree.apply(transaction, zxid, 1000 + zxid)
        seen.append(contents(tree))
    return seen


def without_sessions(state: dict[str, Any]) -> set[str]:
    return {path for path, (_, stat) in state.items() if stat.ephemeral_owner == 0}


def run(disk: MemoryFileSystem, acknowledged: Callable[[int], None]) -> None:
    durable = DurableTree.open(disk, DIRECTORY, 1000)
    for number, transaction in enumerate(scenario(), 1):
        durable.apply(transaction, 1000 + number)
        durable.flush()
        acknowledged(number)
    durable.close()


@pytest.fixture(autouse=True)
def compact_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_COMPACTION_FLOOR_BYTES", 4096)
    monkeypatch.setattr(embedded, "_COMPACTION_GROWTH", 1.5)


def test_the_journal_is_one_file_and_nothing_else() -> None:
    disk = new_disk()
    run(disk, lambda _: None)
    assert [(entry.name, entry.is_dir) for entry in disk.list_dir(DIRECTORY)] == [(JOURNAL_NAME, False)]


def test_everything_comes_back_but_the_ephemerals() -> None:
    disk = new_disk()
    run(disk, lambda _: None)
    final = states()[-1]
    durable = DurableTree.open(disk, DIRECTORY, 9999)
    assert contents(durable.tree) == final
    assert durable.tree.sessions == []
    assert durable.tree.next_session_id == 3


def test_ephemerals_of_the_previous_process_are_gone() -> None:
    disk = new_disk()
    durable = DurableTree.open(disk, DIRECTORY, 0)
    durable.apply(CreateSession(1), 0)
    durable.apply(Multi(1, (Create("/here", ephemeral=True), Create("/stays"))), 0)
    durable.flush()
    zxid = durable.tree.last_zxid
    again = DurableTree.open(disk, DIRECTORY, 0)
    assert again.tree.children("/")[0] == ["stays"]
    assert again.tree.last_zxid > zxid
    assert again.tree.next_session_id == 2


def test_resumable_sessions_outlive_the_process_with_their_nodes() -> None:
    """From the transaction, and from the snapshot at the start of the next process's file."""
    disk = new_disk()
    durable = DurableTree.open(disk, DIRECTORY, 0)
    resumable = Resumable(6000, b"secret")
    durable.apply(CreateSession(1, resumable), 0)
    durable.apply(CreateSession(2, Resumable(9000, b"other")), 0)
    durable.apply(CreateSession(3), 0)
    durable.apply(Multi(1, (Create("/here", ephemeral=True),)), 0)
    durable.apply(Multi(3, (Create("/gone", ephemeral=True),)), 0)
    durable.flush()
    for _ in range(2):
        durable = DurableTree.open(disk, DIRECTORY, 0)
        assert durable.tree.resumable == {1: resumable, 2: Resumable(9000, b"other")}
        assert durable.tree.sessions == [1, 2]
        assert durable.tree.children("/")[0] == ["here"]
    durable.apply(CloseSession(1), 0)
    durable.flush()
    again = DurableTree.open(disk, DIRECTORY, 0)
    assert (again.tree.sessions, again.tree.children("/")[0]) == ([2], [])


def test_a_refused_transaction_leaves_nothing_to_flush() -> None:
    durable = DurableTree.open(new_disk(), DIRECTORY, 0)
    durable.apply(CreateSession(1), 0)
    durable.flush()
    with pytest.raises(MultiError):
        durable.apply(Multi(1, (Delete("/missing"),)), 0)
    assert not durable.dirty


def test_transactions_flushed_together_share_one_append_and_one_fsync() -> None:
    disk = new_disk()
    durable = DurableTree.open(disk, DIRECTORY, 0)
    calls: list[str] = []

    def record(operation: str, _path: str) -> None:
        calls.append(operation)

    disk.inject = record
    durable.apply(CreateSession(1), 0)
    for name in "abc":
        durable.apply(Multi(1, (Create(f"/{name}"),)), 0)
    durable.flush()
    durable.flush()
    assert calls == ["append", "flush"]


def faults() -> list[Callable[[], Fault]]:
    return [
        lambda: Fault(crash_before=True),
        lambda: Fault(crash_after=True),
        lambda: Fault(errno=errno.EIO),
        lambda: Fault(errno=errno.ENOSPC, written_bytes=17),
    ]


@pytest.mark.parametrize("fault", range(len(faults())))
@pytest.mark.parametrize("mode", [None, *PowerCut])
def test_any_call_may_fail_and_the_machine_may_lose_power(fault: int, mode: PowerCut | None) -> None:
    """For every I/O call N: fail at N, stop, perhaps lose power, recover. All acknowledged transactions survive, and
    the state is one that the tree has had.
    """
    expected = states()
    total = _count_calls()
    assert total > 60
    chance = random.Random(fault)
    for failing in range(total):
        disk = new_disk()
        acknowledged = _run_until(disk, failing, faults()[fault]())
        if mode is None:
            disk.kill_process()
        else:
            disk.cut_power(mode, chance.randrange)
        recovered = DurableTree.open(disk, DIRECTORY, 5000)
        paths = without_sessions(contents(recovered.tree))
        possible = [without_sessions(state) for state in expected[acknowledged : acknowledged + 2]]
        assert paths in possible, f"call {failing}"
        durable_again = DurableTree.open(disk, DIRECTORY, 5001)
        assert without_sessions(contents(durable_again.tree)) == paths


def _count_calls() -> int:
    disk = new_disk()
    calls = 0

    def count(_operation: str, _path: str) -> None:
        nonlocal calls
        calls += 1

    disk.inject = count
    run(disk, lambda _: None)
    return calls


def _run_until(disk: MemoryFileSystem, failing: int, fault: Fault) -> int:
    """Run the scenario with `fault` at call number `failing`; returns the number of acknowledged transactions."""
    calls = 0
    acknowledged = 0

    def inject(_operation: str, _path: str) -> Fault | None:
        nonlocal calls
        calls += 1
        return fault if calls == failing + 1 else None

    def note(number: int) -> None:
        nonlocal acknowledged
        acknowledged = number

    disk.inject = inject
    with contextlib.suppress(SimulatedCrash, OSError, NoSpaceError):
        run(disk, note)
    return acknowledged


def test_a_failed_fsync_is_never_retried() -> None:
    disk = new_disk()
    durable = DurableTree.open(disk, DIRECTORY, 0)
    durable.apply(CreateSession(1), 0)
    disk.inject = lambda operation, _path: Fault(errno=errno.EIO) if operation == "flush" else None
    with pytest.raises(OSError, match="EIO"):
        durable.flush()
    disk.inject = lambda _operation, _path: None
    with pytest.raises(OSError, match="EIO"):
        durable.flush()


def test_a_full_disk_undoes_what_could_not_be_written_and_all_goes_on() -> None:
    disk = new_disk()
    durable = DurableTree.open(disk, DIRECTORY, 0)
    durable.apply(CreateSession(1), 0)
    durable.apply(Multi(1, (Create("/a", b"old"),)), 0)
    durable.flush()
    before = contents(durable.tree)
    for torn in (0, 17):
        disk.inject = lambda operation, _path, torn=torn: (  # type: ignore[misc]
            Fault(errno=errno.ENOSPC, written_bytes=torn) if operation == "append" else None
        )
        durable.apply(Multi(1, (Create("/b"), SetData("/a", b"new"))), 0)
        durable.apply(Multi(1, (Delete("/b"),)), 0)
        with pytest.raises(NoSpaceError, match=f"{PATH} cannot grow"):
            durable.flush()
        assert contents(durable.tree) == before
        assert not durable.dirty
    disk.inject = lambda _operation, _path: None
    durable.apply(Multi(1, (SetData("/a", b"newer"),)), 0)
    durable.flush()
    disk.cut_power(PowerCut.LOSE, lambda _count: 0)
    assert DurableTree.open(disk, DIRECTORY, 0).tree.get("/a")[0] == b"newer"


def test_a_start_on_a_disk_without_room_for_a_copy() -> None:
    disk = new_disk()
    durable = DurableTree.open(disk, DIRECTORY, 0)
    durable.apply(CreateSession(1), 0)
    durable.apply(Multi(1, (Create("/stays", bytes(2000)), Create("/goes", ephemeral=True))), 0)
    durable.flush()
    with_torn_frame = disk.read_file(PATH) + b"torn"
    disk.write_file(PATH, with_torn_frame)
    disk.capacity_bytes = disk.used_bytes + 500
    again = DurableTree.open(disk, DIRECTORY, 0)
    assert again.tree.children("/")[0] == ["stays"]
    assert [entry.name for entry in disk.list_dir(DIRECTORY)] == [JOURNAL_NAME]
    again.apply(CreateSession(2), 0)
    again.flush()
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(JournalError, match="The disk is full, and a broker has to write a little when it starts"):
        DurableTree.open(disk, DIRECTORY, 0)
    disk.capacity_bytes = None
    assert DurableTree.open(disk, DIRECTORY, 0).tree.sessions == []


def test_a_compaction_that_finds_no_room_leaves_the_journal_in_use() -> None:
    disk = new_disk()
    durable = DurableTree.open(disk, DIRECTORY, 0)
    durable.apply(CreateSession(1), 0)
    disk.inject = lambda operation, path: (
        Fault(errno=errno.ENOSPC) if operation == "append" and path.endswith(".tmp") else None
    )
    for number in range(30):
        durable.apply(Multi(1, (Create(f"/{number}", bytes(1000)),)), 0)
        durable.flush()
    disk.inject = lambda _operation, _path: None
    assert len(DurableTree.open(disk, DIRECTORY, 0).tree) == 31


def test_compaction_bounds_the_file() -> None:
    disk = new_disk()
    durable = DurableTree.open(disk, DIRECTORY, 0)
    durable.apply(CreateSession(1), 0)
    durable.apply(Multi(1, (Create("/a"),)), 0)
    for _ in range(500):
        durable.apply(Multi(1, (SetData("/a", bytes(500)),)), 0)
        durable.flush()
    assert len(disk.read_file(PATH)) < 3 * 4096
    assert DurableTree.open(disk, DIRECTORY, 0).tree.get("/a")[1].version == 500


def written() -> tuple[MemoryFileSystem, bytes]:
    disk = new_disk()
    durable = DurableTree.open(disk, DIRECTORY, 0)
    durable.apply(CreateSession(1), 0)
    durable.flush()
    for name in "abcd":
        durable.apply(Multi(1, (Create(f"/{name}", b"data of " + name.encode()),)), 0)
        durable.flush()
    return disk, disk.read_file(PATH)


def test_a_torn_last_frame_is_cut_off_wherever_it_was_torn() -> None:
    _, whole = written()
    last = whole.rindex(journal_format.FRAME_MARK)
    for length in range(last, len(whole)):
        disk = new_disk()
        disk.write_file(PATH, whole[:length])
        assert DurableTree.open(disk, DIRECTORY, 0).tree.children("/")[0] == ["a", "b", "c"]


def test_a_flipped_bit_is_damage_unless_it_is_in_the_last_frame() -> None:
    _, whole = written()
    last = whole.rindex(journal_format.FRAME_MARK)
    for position in range(len(whole)):
        disk = new_disk()
        disk.write_file(PATH, whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        if position >= last:
            assert DurableTree.open(disk, DIRECTORY, 0).tree.children("/")[0] == ["a", "b", "c"]
        else:
            with pytest.raises(JournalError, match=JOURNAL_NAME.replace(".", r"\.")):
                DurableTree.open(disk, DIRECTORY, 0)
            assert disk.exists(PATH)


def test_zeros_behind_the_last_frame_are_cut_off() -> None:
    _, whole = written()
    disk = new_disk()
    disk.write_file(PATH, whole + bytes(4096))
    assert DurableTree.open(disk, DIRECTORY, 0).tree.children("/")[0] == ["a", "b", "c", "d"]


def test_a_file_of_something_else_is_refused_and_left_alone() -> None:
    disk = new_disk()
    disk.write_file(PATH, b"not ours at all")
    with pytest.raises(JournalError, match="not a coordination journal"):
        DurableTree.open(disk, DIRECTORY, 0)
    assert disk.read_file(PATH) == b"not ours at all"


def test_a_path_that_the_journal_cannot_hold_changes_nothing() -> None:
    durable = DurableTree.open(new_disk(), DIRECTORY, 0)
    durable.apply(CreateSession(1), 0)
    durable.flush()
    with pytest.raises(Exception, match="format"):
        durable.apply(Multi(1, (Create("/" + "x" * 70_000),)), 0)
    assert not durable.dirty
    assert durable.tree.children("/")[0] == []


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_nobody_else_can_read_the_keys_of_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_COMPACTION_FLOOR_BYTES", 1)
    directory = tmp_path / "new" / "data"
    lock_directory(OsFileSystem(), str(directory))
    assert directory.stat().st_mode & 0o777 == 0o700
    journal = directory / JOURNAL_NAME
    tree = DurableTree.open(OsFileSystem(), str(directory), 0)
    assert journal.stat().st_mode & 0o777 == 0o600
    inode = journal.stat().st_ino
    for transaction in scenario():
        tree.apply(transaction, 0)
        tree.flush()
    assert journal.stat().st_ino != inode, "it was never compacted"
    assert journal.stat().st_mode & 0o777 == 0o600
    tree.close()
    journal.chmod(0o644)  # as an earlier version wrote it
    DurableTree.open(OsFileSystem(), str(directory), 0).close()
    assert journal.stat().st_mode & 0o777 == 0o600
