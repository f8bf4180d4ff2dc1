"""Access control lists: ZooKeeper and the served tree give the same answers to the same calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, KazooException
from kazoo.protocol.serialization import Create
from kazoo.protocol.states import WatchedEvent
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Id

from tests.kit.waiting import eventually
from tests.kit.zookeeper import real_zookeeper, served_tree

OWNER, OTHER = ("digest", "owner:secret"), ("digest", "other:x:y")
OWNER_ID, OTHER_ID = "owner:Vj++wdU3sMAbt+g9TyKj1BT+usI=", "other:CPcVU7DLL3QCWuZSIYfE5dHiXXo="
NAMES = {1: "r", 2: "w", 4: "c", 8: "d", 16: "a"}
SETTINGS = ("", "r", "w", "c", "d", "a", "rwcda")


@contextlib.contextmanager
def client(address: str, *credentials: tuple[str, str]) -> Iterator[KazooClient]:
    """A client authenticated with `credentials`."""
    kazoo = KazooClient(address)
    kazoo.start(30)
    try:
        for scheme, secret in credentials:
            kazoo.add_auth(scheme, secret)
        yield kazoo
    finally:
        kazoo.stop()
        kazoo.close()


def entry(letters: str, scheme: str = "world", name: str = "anyone") -> ACL:
    """An entry with these permissions, of r, w, c, d and a."""
    return ACL(sum(bit for bit, letter in NAMES.items() if letter in letters), Id(scheme, name))


def ask(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The comparable part of the answer, without times and zxids, or the name of the error."""
    try:
        answer = call(*arguments, **options)
    except KazooException as error:
        return type(error).__name__
    if hasattr(answer, "acl_version"):
        return f"version {answer.version}, of the list {answer.acl_version}"
    if isinstance(answer, tuple) and answer[0] and isinstance(answer[0][0], ACL):
        return sorted(map(text, answer[0])), answer[1].acl_version
    return answer[0] if isinstance(answer, tuple) else answer


def text(each: ACL) -> str:
    letters = "".join(letter for bit, letter in NAMES.items() if each.perms & bit)
    return f"{letters} {each.id.scheme}:{each.id.id}"


def permissions(address: str) -> None:
    """ZooKeeper checks each permission for its operations, and for no others."""
    with client(address, OWNER) as owner, client(address, OTHER) as other:
        for letters in SETTINGS:
            path = f"/p{letters}"
            mine = [entry(letters), entry("rwcda", "digest", OWNER_ID)]
            owner.create(path, b"1", acl=mine)
            owner.create(f"{path}/child", b"")
            for needed, answer, call, *arguments in (
                ("r", b"1", other.get, path),
                ("r", ["child"], other.get_children, path),
                ("r", ["child"], partial(other.get_children, include_data=True), path),
                ("r", "version 0, of the list 0", other.exists, path),
                ("", None, other.exists, f"{path}/none"),
                ("w", "version 1, of the list 0", other.set, path, b"2"),
                ("w", "BadVersionError", other.set, path, b"2", 7),
                ("c", f"{path}/new", other.create, f"{path}/new"),
                ("c", "NodeExistsError", other.create, f"{path}/child"),
                ("c", f"{path}/s0000000002", partial(other.create, sequence=True, ephemeral=True), f"{path}/s"),
                ("d", True, other.delete, f"{path}/child"),
                ("d", "NoNodeError", other.delete, f"{path}/none"),
                ("a", "BadVersionError", other.set_acls, path, OPEN_ACL_UNSAFE, 9),
                ("a", f"version {'w' in letters:d}, of the list 1", other.set_acls, path, mine),
            ):
                expected = answer if needed in letters else "NoAuthError"
                assert ask(call, *arguments) == expected, (letters, call, arguments)
            # Only clients that may change the list see the hash.
            seen = OWNER_ID if "a" in letters else "owner:x"
            shown = sorted([f"{letters} world:anyone", f"rwcda digest:{seen}"])
            is_shown = "r" in letters or "a" in letters
            assert ask(other.get_acls, path) == ((shown, int("a" in letters)) if is_shown else "NoAuthError")


def lists(address: str) -> None:
    """ACLs are stored, in canonical form or unchanged, or refused."""
    refused = "InvalidACLError"
    with client(address, OWNER) as owner, client(address) as nobody:
        for at, (wanted, kept, may_read) in enumerate(
            (
                (OPEN_ACL_UNSAFE, ["rwcda world:anyone"], True),
                (CREATOR_ALL_ACL, [f"rwcda digest:{OWNER_ID}"], False),
                (
                    [entry("rwcda", "digest", OWNER_ID), entry("r")],
                    ["r world:anyone", f"rwcda digest:{OWNER_ID}"],
                    True,
                ),
                ([entry("ra", "ip", "127.0.0.1")], ["ra ip:127.0.0.1"], True),
                ([entry("r", "ip", "10.0.0.1"), entry("a", "ip", "127.9.9.9/8")], None, False),
                ([entry("a"), entry("w")], ["a world:anyone", "w world:anyone"], False),
                ([], refused, False),
                ([entry("r", "world", "somebody")], refused, False),
                ([entry("r", "digest", "alice")], refused, False),
                ([entry("r", "digest", "alice:")], refused, False),
                ([entry("r", "digest", "a:b:c")], refused, False),
                ([entry("r", "ip", "10.0.0.256")], refused, False),
                ([entry("r", "ip", "10.0.0.1/33")], refused, False),
                ([entry("r", "nonsense", "x")], refused, False),
                ([entry("r", "super", "")], refused, False),
                ([entry("r", "sasl", "alice")], refused, False),
            )
        ):
            path = f"/l{at}"
            if kept == refused:
                assert ask(create, owner, path, wanted) == refused, wanted
                assert nobody.exists(path) is None
                continue
            assert ask(create, owner, path, wanted) == path, wanted
            assert ask(owner.get_acls, path) == (kept or ["a ip:127.9.9.9/8", "r ip:10.0.0.1"], 0)
            assert ask(nobody.get, path) == (b"" if may_read else "NoAuthError"), wanted
        assert ask(nobody.create, "/of-nobody", acl=CREATOR_ALL_ACL) == refused
        assert ask(owner.create, "/none/child", acl=[entry("r", "nonsense", "x")]) == refused
        assert ask(owner.set_acls, "/none", OPEN_ACL_UNSAFE) == "NoNodeError"
        assert ask(owner.set_acls, "/none", [entry("r", "nonsense", "x")]) == refused


def create(kazoo: KazooClient, path: str, acl: list[ACL]) -> Any:
    """Like kazoo's `create`, which treats an empty list as none."""
    answer = kazoo.handler.async_result()
    kazoo._call(Create(path, b"", acl, 0), answer)
    return answer.get()


def two_identities(address: str) -> None:
    with client(address, OWNER) as owner, client(address, OWNER, OTHER) as both, client(address) as nobody:
        both.create("/of-two", acl=CREATOR_ALL_ACL)
        shown = [f"rwcda digest:{OTHER_ID}", f"rwcda digest:{OWNER_ID}"]
        assert ask(both.get_acls, "/of-two") == (shown, 0)
        assert ask(owner.set, "/of-two", b"") == "version 1, of the list 0"
        answers = [ask(owner.set_acls, "/of-two", CREATOR_ALL_ACL, version=version) for version in (0, 0, 1, -1)]
        assert answers == [
            f"version 1, of the list {number}" if number else "BadVersionError" for number in (1, 0, 2, 3)
        ]
        # Now no one may change it, but a node's ACL does not protect the node from deletion.
        assert ask(owner.set_acls, "/of-two", [entry("r")]) == "version 1, of the list 4"
        assert ask(owner.set_acls, "/of-two", OPEN_ACL_UNSAFE) == "NoAuthError"
        nobody.delete("/of-two")


def transactions(address: str) -> None:
    """Each operation is authorized against the state left by those before it."""
    done, failed, not_tried = True, "RolledBackError", "RuntimeInconsistency"
    with client(address, OWNER) as owner, client(address, OTHER) as other:
        owner.create("/t", b"", acl=[*CREATOR_ALL_ACL, *READ_ACL_UNSAFE])
        owner.create("/t/hidden", b"", acl=CREATOR_ALL_ACL)
        owner.create("/t/free", b"", acl=OPEN_ACL_UNSAFE)

        def play(who: KazooClient, *calls: tuple[str, *tuple[Any, ...]]) -> list[Any]:
            transaction = who.transaction()
            for name, *arguments in calls:
                getattr(transaction, name)(*arguments)
            return [type(each).__name__ if isinstance(each, Exception) else True for each in transaction.commit()]

        guarded = ("create", "/mine", b"", CREATOR_ALL_ACL), ("create", "/mine/child"), ("delete", "/mine/child")
        assert play(owner, *guarded) == [done, done, done]
        assert play(other, ("create", "/mine/child"), ("delete", "/mine")) == ["NoAuthError", not_tried]
        closed = ("create", "/theirs", b"", READ_ACL_UNSAFE), ("create", "/theirs/child")
        assert play(owner, *closed) == [failed, "NoAuthError"]
        assert play(owner, ("check", "/t", 0), ("check", "/t/hidden", 0)) == [done, done]
        assert play(other, ("check", "/t", 0), ("check", "/t/hidden", 0)) == [failed, "NoAuthError"]
        assert play(other, ("check", "/t/hidden", 9)) == ["NoAuthError"]
        assert play(other, ("set_data", "/t/free", b""), ("set_data", "/t", b"")) == [failed, "NoAuthError"]
        assert play(other, ("delete", "/t/free"), ("set_data", "/t", b"")) == ["NoAuthError", not_tried]
        bad = ("create", "/bad", b"", [entry("r", "nonsense", "x")]), ("create", "/good")
        assert play(other, *bad) == ["InvalidACLError", not_tried]


def watches(address: str) -> None:
    """A client that may not read a changed node gets no event."""
    with client(address, OWNER) as owner, client(address) as other:
        told: list[Any] = []

        def tell(event: WatchedEvent) -> None:
            told.append((event.type, event.path))

        owner.create("/w", b"", acl=OPEN_ACL_UNSAFE)
        owner.create("/w/open", b"", acl=OPEN_ACL_UNSAFE)
        owner.create("/w/closed", b"", acl=OPEN_ACL_UNSAFE)
        other.get("/w/closed", tell)
        other.exists("/w/later", tell)
        other.exists("/w/later-open", tell)
        other.get("/w/open", tell)
        owner.set_acls("/w/closed", CREATOR_ALL_ACL)
        owner.set("/w/closed", b"2")
        owner.delete("/w/closed")
        owner.create("/w/later", b"", acl=CREATOR_ALL_ACL)
        owner.create("/w/later-open", b"", acl=OPEN_ACL_UNSAFE)
        other.get_children("/w", tell)
        owner.delete("/w/open")
        eventually("the last event", lambda: ("CHILD", "/w") in told)
        assert told == [("CREATED", "/w/later-open"), ("DELETED", "/w/open"), ("CHILD", "/w")]
        assert ask(other.exists, "/w/later", tell) == "NoAuthError"


def unknown_schemes(address: str) -> None:
    with client(address) as nobody, pytest.raises(AuthFailedError):
        nobody.add_auth("nonsense", "x")


SCENARIOS = [permissions, lists, two_identities, transactions, watches, unknown_schemes]


@pytest.fixture(scope="module")
def served_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_tree(tmp_path_factory.mktemp("tree")) as server:
        yield server.address


@pytest.fixture(scope="module")
def real_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server.address


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_served_tree(scenario: Callable[[str], None], served_address: str) -> None:
    scenario(served_address)


@pytest.mark.java
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_real_zookeeper(scenario: Callable[[str], None], real_address: str) -> None:
    scenario(real_address)


def test_lists_outlive_the_server(tmp_path: Path) -> None:
    """From the journal, and after the next start from its snapshot."""
    with served_tree(tmp_path) as server:
        with client(server.address, OWNER) as owner:
            owner.create("/made", b"", acl=[*CREATOR_ALL_ACL, *READ_ACL_UNSAFE])
            owner.create("/set", b"", acl=OPEN_ACL_UNSAFE)
            owner.set_acls("/set", CREATOR_ALL_ACL)
            owner.create("/open-again", b"", acl=CREATOR_ALL_ACL)
            owner.set_acls("/open-again", OPEN_ACL_UNSAFE)
        for _ in range(2):
            server.kill()
            server.start()
            with client(server.address) as nobody:
                made = ["r world:anyone", "rwcda digest:owner:x"]
                assert ask(nobody.get_acls, "/made") == (made, 0)
                assert ask(nobody.set, "/made", b"2") == "NoAuthError"
                assert ask(nobody.get, "/set") == "NoAuthError"
                assert ask(nobody.get_acls, "/open-again") == (["rwcda world:anyone"], 1)
            with client(server.address, OWNER) as owner:
                assert ask(owner.get_acls, "/set") == ([f"rwcda digest:{OWNER_ID}"], 1)
