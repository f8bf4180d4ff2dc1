"""ZooKeeper's requests on the tree: each becomes one action, which returns the body of the reply. The authenticated
identities of a connection decide about access (ZooKeeper's DigestAuthenticationProvider and others).

A request runs with the identities that its connection had when the request arrived.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from environment.sliced import Sliced
from protocol.errors import detached
from protocol.value import Value
from zookeeper import wire_format as wire
from zookeeper.access_control import AuthId, AuthIds, Permission, is_allowed, resolved, without_hashes
from zookeeper.commit_queue import CommitQueue
from zookeeper.coordination import (
    CoordinationError,
    EventType,
    MultiError,
    NoAuthError,
    NoNodeError,
    Watch,
    WatchEvent,
    ZnodeStat,
)
from zookeeper.digest_md5 import DigestMd5Server
from zookeeper.wire_format import OpCode, RecordReader, ResolveAcl
from zookeeper.znode_tree import Multi, SetAcl, TreeOperation

_SCHEMES: Final = frozenset({"ip", "digest"})


class ServedUsers(Value):
    """The server's users: passwords by name for SASL (None: SASL is off), and whether access control lists may name
    them. `new_nonce` returns unpredictable text.
    """

    new_nonce: Callable[[], str]
    passwords: Mapping[str, str] | None = None
    may_be_listed: bool = False


class ServedIdentities:
    """The identities of one connection from `address`."""

    def __init__(self, address: str, users: ServedUsers) -> None:
        self._sasl = None if users.passwords is None else DigestMd5Server(users.passwords, users.new_nonce)
        self._schemes = _SCHEMES | {"sasl"} if users.may_be_listed else _SCHEMES
        # An IPv4 address on an IPv6 socket.
        self.all: AuthIds = (AuthId("ip", address.removeprefix("::ffff:")),)
        """The identities in order of authentication; an addition replaces the tuple."""

    def resolver(self) -> ResolveAcl:
        """Resolves access control lists with the current identities."""
        return partial(resolved, identities=self.all, schemes=self._schemes)

    def add(self, scheme: str, credentials: bytes) -> bool:
        """Process AddAuth credentials. Returns whether the scheme is accepted."""
        if scheme == "digest":
            self._add(digest_identity(credentials))
        return scheme in _SCHEMES

    def evaluate(self, token: bytes) -> bytes | None:
        """The answer to the next SASL message, or None if SASL is off. Raises RefusedError."""
        if self._sasl is None:
            return None
        answer = self._sasl.evaluate(token)
        if self._sasl.username is not None:
            self._add(AuthId("sasl", self._sasl.username))
        return answer

    def _add(self, identity: AuthId) -> None:
        if identity not in self.all:
            self.all = (*self.all, identity)


def digest_identity(credentials: bytes) -> AuthId:
    """The user, and a hash of `user:password`. Invalid UTF-8 is decoded as Java does."""
    text = credentials.decode(errors="replace")
    secret = b64encode(hashlib.sha1(text.encode()).digest()).decode()  # noqa: S324 - required by the scheme
    return AuthId("digest", f"{text.partition(':')[0]}:{secret}")


QUEUED: Final = frozenset(
    {OpCode.CREATE, OpCode.CREATE2, OpCode.DELETE, OpCode.SET_DATA, OpCode.SET_ACL, OpCode.MULTI, OpCode.MULTI_READ}
)
"""Requests that go through the write queue, where large ones run in slices."""

Action = Callable[[], Any]
"""Returns the body of the reply, or work in slices that does. Raises CoordinationError."""


class ServedRequests:
    """The requests of one connection of a session; `watch` receives its events."""

    def __init__(self, queue: CommitQueue, session_id: int, identities: ServedIdentities, watch: Watch) -> None:
        self._queue = queue
        self._identities = identities
        self._session_id = session_id
        self._watch = watch
        self.is_heard = True
        """Whether the connection still receives events."""

    def action(self, code: int, reader: RecordReader) -> Action:
        """The action for a request. Raises CoordinationError for a malformed or unsupported one."""
        who, resolve = self._identities.all, self._identities.resolver()
        match code:
            case OpCode.CREATE | OpCode.CREATE2 | OpCode.DELETE | OpCode.SET_DATA:
                return partial(self._change, code, wire.read_operation(code, reader, resolve), who)
            case OpCode.SET_ACL:
                operation = SetAcl(reader.string(), wire.read_acl(reader, resolve), reader.i32())
                return partial(self._change, code, operation, who)
            case OpCode.MULTI:
                return partial(self._multi, reader, resolve, who)
            case OpCode.MULTI_READ:
                return partial(self._multi_read, wire.read_multi_read(reader), who)
            case OpCode.EXISTS:
                return partial(self._exists, reader.string(), reader.boolean(), who)
            case OpCode.GET_DATA:
                return partial(self._get_data, reader.string(), reader.boolean(), who)
            case OpCode.GET_CHILDREN | OpCode.GET_CHILDREN2:
                return partial(self._get_children, code, reader.string(), reader.boolean(), who)
            case OpCode.SYNC:
                return partial(wire.encode_string, reader.string())
            case OpCode.GET_ACL:
                return partial(self._get_acl, reader.string(), who)
            case OpCode.SET_WATCHES:
                return partial(self._set_watches, wire.read_set_watches(reader))
        raise wire.UnimplementedError(f"operation {code}")

    # -- changes -------------------------------------------------------------------------------------------------------

    def _change(self, code: int, operation: TreeOperation, who: AuthIds) -> Sliced[bytes]:
        try:
            applied = yield from self._queue.apply(Multi(self._session_id, (operation,), who))
        except MultiError as error:
            if isinstance(error.__cause__, CoordinationError):
                raise detached(error.__cause__) from None
            raise
        (result,) = applied.results
        if isinstance(result, ZnodeStat):
            return wire.encode_stat(result)
        if result is None:
            return b""
        path = wire.encode_string(result)
        return path + wire.encode_stat(self._queue.tree.get(result)[1]) if code == OpCode.CREATE2 else path

    def _multi(self, reader: RecordReader, resolve: wire.ResolveAcl, who: AuthIds) -> Sliced[bytes]:
        codes, operations = yield from wire.read_multi(reader, resolve, self._queue.should_yield)
        try:
            applied = yield from self._queue.apply(Multi(self._session_id, tuple(operations), who))
        except MultiError as error:
            return wire.encode_multi_error(codes, error)
        encoding = wire.encode_multi_results(codes, applied.results, self._stat_of_created, self._queue.should_yield)
        return (yield from encoding)

    def _stat_of_created(self, path: str) -> ZnodeStat:
        """The stat of a created node, unless a later operation of the same transaction has deleted it."""
        return self._queue.tree.exists(path) or ZnodeStat(*[0] * len(ZnodeStat._fields))

    # -- reads ---------------------------------------------------------------------------------------------------------

    def _exists(self, path: str, watched: bool, who: AuthIds) -> bytes:
        stat = self._queue.tree.exists(path)
        if stat is not None:
            self._require(Permission.READ, path, who)
        if watched:
            self._watch_data(path)
        if stat is None:
            raise NoNodeError(f"no node {path}")
        return wire.encode_stat(stat)

    def _get_data(self, path: str, watched: bool, who: AuthIds) -> bytes:
        data, stat = self._queue.tree.get(path)
        self._require(Permission.READ, path, who)
        if watched:
            self._watch_data(path)
        return wire.encode_buffer(data) + wire.encode_stat(stat)

    def _multi_read(self, reads: Sequence[tuple[int, str]], who: AuthIds) -> Sliced[bytes]:
        """Each read has a separate result or error."""
        results: list[tuple[int, bytes | CoordinationError]] = []
        for code, path in reads:
            try:
                body = (
                    self._get_data(path, False, who)
                    if code == OpCode.GET_DATA
                    else self._get_children(code, path, False, who)
                )
            except CoordinationError as error:
                results.append((code, detached(error)))
            else:
                results.append((code, body))
            if self._queue.should_yield():
                yield
        return wire.encode_multi_read(results)

    def _get_children(self, code: int, path: str, watched: bool, who: AuthIds) -> bytes:
        names, stat = self._queue.tree.children(path)
        self._require(Permission.READ, path, who)
        if watched:
            self._watch_children(path)
        encoded = wire.encode_strings(names)
        return encoded + wire.encode_stat(stat) if code == OpCode.GET_CHILDREN2 else encoded

    def _get_acl(self, path: str, who: AuthIds) -> bytes:
        self._require(Permission.READ | Permission.ADMIN, path, who)
        acl = self._queue.tree.acl(path)
        shown = acl if is_allowed(acl, Permission.ADMIN, who) else without_hashes(acl)
        return wire.encode_acl(shown) + wire.encode_stat(self._queue.tree.get(path)[1])

    def _require(self, permission: Permission, path: str, who: AuthIds) -> None:
        if not is_allowed(self._queue.tree.acl(path), permission, who):
            raise NoAuthError(f"{path} is not allowed")

    # -- watches -------------------------------------------------------------------------------------------------------

    def _watch_data(self, path: str) -> None:
        if self.is_heard:
            self._queue.watches.watch_data(path, self._watch, self._session_id)

    def _watch_children(self, path: str) -> None:
        if self.is_heard:
            self._queue.watches.watch_children(path, self._watch, self._session_id)

    def _set_watches(self, wanted: wire.SetWatches) -> bytes:
        """Fire the watches whose nodes have changed since the client's last zxid, and keep the others
        (DataTree.setWatches).
        """
        tree = self._queue.tree
        for path in wanted.data:
            stat = tree.exists(path)
            if stat is None:
                self._fire(EventType.DELETED, path)
            elif stat.mzxid > wanted.last_zxid_seen:
                self._fire(EventType.DATA_CHANGED, path)
            else:
                self._watch_data(path)
        for path in wanted.absent:
            if tree.exists(path) is not None:
                self._fire(EventType.CREATED, path)
            else:
                self._watch_data(path)
        for path in wanted.children:
            stat = tree.exists(path)
            if stat is None:
                self._fire(EventType.DELETED, path)
            elif stat.pzxid > wanted.last_zxid_seen:
                self._fire(EventType.CHILDREN_CHANGED, path)
            else:
                self._watch_children(path)
        return b""

    def _fire(self, kind: EventType, path: str) -> None:
        self._queue.fire(self._watch, WatchEvent(kind, path))
