"""The format of the coordination journal: frames with a CRC, holding transactions or pieces of a snapshot.

    file      = MAGIC, frame*
    frame     = FRAME_MARK u32, payload length u32, CRC-32 of the payload u32, payload
    payload   = kind u8, body
    SNAPSHOT  = last zxid i64, next session id i64, node count u32, session count u32, session id i64 *
    RESUMABLE = (session id i64, resumable)*
    ACCESS    = (path string, version i32, acl)*
    NODES     = node*    (parents before children)
    TRANSACTIONS = (zxid i64, now_ms i64, kind u8, session id i64, [resumable | operation count u32, operation*])*
    resumable = timeout_ms i32, password data
    acl       = entry count u16, (permissions i32, scheme string, id string)*
    string    = length u16, UTF-8;   data = length i32 (-1: null), bytes

All integers are big-endian. A file begins with one SNAPSHOT frame, a RESUMABLE frame if it has resumable sessions,
ACCESS frames for nodes with an access control list other than OPEN, and NODES frames up to the snapshot's node count.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, starmap

from environment.sliced import Sliced
from zookeeper.access_control import OPEN, Acl, AclEntry
from zookeeper.coordination import Check, Create, Delete, SetData
from zookeeper.znode import Znode
from zookeeper.znode_tree import (
    CloseSession,
    CreateSession,
    Multi,
    Resumable,
    SetAcl,
    Transaction,
    TreeOperation,
    ZnodeTree,
)

MAGIC = b"ODRKCRD\x01"
FRAME_MARK = b"\xa5Zf\x9d"
FRAME_HEADER = struct.Struct(">4sII")

KIND_SNAPSHOT = 1
KIND_NODES = 2
KIND_TRANSACTIONS = 3
KIND_RESUMABLE = 4
KIND_ACCESS = 5

_SNAPSHOT_CHUNK_NODES = 4096

_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_I32 = struct.Struct(">i")
_SNAPSHOT_HEAD = struct.Struct(">qqII")
_SESSION = struct.Struct(">q")
_TRANSACTION_HEAD = struct.Struct(">qqBq")
_COUNT = struct.Struct(">I")
_NODE = struct.Struct(">qqqqqiIq")

_CREATE_SESSION, _CLOSE_SESSION, _MULTI, _CREATE_RESUMABLE = 1, 2, 3, 4
_CREATE, _SET_DATA, _DELETE, _CHECK, _CREATE_GUARDED, _SET_ACL = 1, 2, 3, 4, 5, 6
_EPHEMERAL, _SEQUENTIAL = 1, 2


class FormatError(Exception):
    """A payload with the right CRC but with content that this version does not write."""


def frame(payload: bytes) -> bytes:
    """`payload` with its header."""
    return FRAME_HEADER.pack(FRAME_MARK, len(payload), zlib.crc32(payload)) + payload


def parse_frame(buffer: memoryview, position: int) -> tuple[memoryview, int] | None:
    """The payload and the end of its frame, or None unless a complete frame with the right CRC begins at `position`."""
    if position + FRAME_HEADER.size > len(buffer):
        return None
    mark, length, crc = FRAME_HEADER.unpack_from(buffer, position)
    start = position + FRAME_HEADER.size
    if mark != FRAME_MARK or length > len(buffer) - start:
        return None
    payload = buffer[start : start + length]
    if zlib.crc32(payload) != crc:
        return None
    return payload, start + length


def find_frame(buffer: memoryview, position: int) -> int | None:
    """The position of the first complete frame at or after `position`, if any."""
    data = bytes(buffer[position:])
    found = data.find(FRAME_MARK)
    while found >= 0:
        if parse_frame(buffer, position + found) is not None:
            return position + found
        found = data.find(FRAME_MARK, found + 1)
    return None


def encode_transaction(
    transaction: Transaction, zxid: int, now_ms: int, should_yield: Callable[[], bool]
) -> Sliced[bytes]:
    """One transaction of a TRANSACTIONS payload, with a pause after an operation whenever `should_yield` says so."""
    match transaction:
        case CreateSession(session_id, resumable):
            if resumable is None:
                return _TRANSACTION_HEAD.pack(zxid, now_ms, _CREATE_SESSION, session_id)
            head = _TRANSACTION_HEAD.pack(zxid, now_ms, _CREATE_RESUMABLE, session_id)
            return head + _encode_resumable(resumable)
        case CloseSession(session_id):
            return _TRANSACTION_HEAD.pack(zxid, now_ms, _CLOSE_SESSION, session_id)
        case Multi(session_id, operations):
            parts = [_TRANSACTION_HEAD.pack(zxid, now_ms, _MULTI, session_id), _COUNT.pack(len(operations))]
            for operation in operations:
                parts.append(_encode_operation(operation))
                if should_yield():
                    yield
            return b"".join(parts)


def transactions_frame(transactions: Iterable[bytes]) -> bytes:
    """A frame with encoded transactions."""
    return frame(_U8.pack(KIND_TRANSACTIONS) + b"".join(transactions))


def snapshot_frames(tree: ZnodeTree) -> Iterator[bytes]:
    """The frames at the beginning of a file."""
    sessions = tree.sessions
    head = _SNAPSHOT_HEAD.pack(tree.last_zxid, tree.next_session_id, len(tree), len(sessions))
    yield frame(_U8.pack(KIND_SNAPSHOT) + head + b"".join(map(_SESSION.pack, sessions)))
    if tree.resumable:
        kept = (_SESSION.pack(each) + _encode_resumable(tree.resumable[each]) for each in sorted(tree.resumable))
        yield frame(_U8.pack(KIND_RESUMABLE) + b"".join(kept))
    guarded = ((path, node) for path, node in tree.nodes() if node.acl_version or node.acl is not OPEN)
    yield from _chunks(KIND_ACCESS, starmap(_encode_access, guarded))
    yield from _chunks(KIND_NODES, starmap(_encode_node, tree.nodes()))


def _chunks(kind: int, records: Iterator[bytes]) -> Iterator[bytes]:
    while chunk := list(islice(records, _SNAPSHOT_CHUNK_NODES)):
        yield frame(_U8.pack(kind) + b"".join(chunk))


class Restorer:
    """Rebuilds a tree from payloads in file order. `complete` turns true once all nodes of the snapshot were read."""

    def __init__(self) -> None:
        self.tree = ZnodeTree()
        self._missing_nodes: int | None = None
        self._access: dict[str, tuple[int, Acl]] = {}

    @property
    def complete(self) -> bool:
        """Whether the snapshot at the beginning of the file was read to its end."""
        return self._missing_nodes == 0

    def feed(self, payload: memoryview) -> None:
        """Take the next payload. Raises FormatError, or CoordinationError if a transaction fails on replay."""
        try:
            self._feed(_Reader(payload))
        except (struct.error, IndexError, UnicodeDecodeError, KeyError, ValueError) as error:
            raise FormatError(f"malformed payload: {error}") from error

    def _feed(self, reader: _Reader) -> None:
        (kind,) = reader.unpack(_U8)
        if kind == KIND_SNAPSHOT and self._missing_nodes is None:
            last_zxid, next_session_id, self._missing_nodes, session_count = reader.unpack(_SNAPSHOT_HEAD)
            self.tree.last_zxid, self.tree.next_session_id = last_zxid, next_session_id
            for _ in range(session_count):
                (session_id,) = reader.unpack(_SESSION)
                self.tree.restore_session(session_id)
        elif kind == KIND_RESUMABLE and self._missing_nodes:
            while not reader.exhausted:
                (session_id,) = reader.unpack(_SESSION)
                self.tree.restore_session(session_id, _decode_resumable(reader))
        elif kind == KIND_ACCESS and self._missing_nodes:
            while not reader.exhausted:
                path, (version,) = reader.string(), reader.unpack(_I32)
                self._access[path] = version, _decode_acl(reader)
        elif kind == KIND_NODES and self._missing_nodes:
            while not reader.exhausted:
                path, node = _decode_node(reader)
                node.acl_version, node.acl = self._access.pop(path, (0, OPEN))
                self.tree.restore(path, node)
                self._missing_nodes -= 1
        elif kind == KIND_TRANSACTIONS and self.complete:
            while not reader.exhausted:
                self.tree.apply(*_decode_transaction(reader))
        else:
            raise FormatError(f"a payload of kind {kind} is out of place")


class _Reader:
    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self._position = 0

    @property
    def exhausted(self) -> bool:
        return self._position >= len(self._buffer)

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        values = layout.unpack_from(self._buffer, self._position)
        self._position += layout.size
        return values

    def take(self, length: int) -> bytes:
        piece = bytes(self._buffer[self._position : self._position + length])
        if len(piece) != length:
            raise FormatError(f"{length} bytes were promised, {len(piece)} are there")
        self._position += length
        return piece

    def string(self) -> str:
        (length,) = self.unpack(_U16)
        return self.take(length).decode()

    def data(self) -> bytes | None:
        (length,) = self.unpack(_I32)
        return None if length < 0 else self.take(length)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _U16.pack(len(encoded)) + encoded


def _data(data: bytes | None) -> bytes:
    return _I32.pack(-1) if data is None else _I32.pack(len(data)) + data


def _encode_resumable(resumable: Resumable) -> bytes:
    return _I32.pack(resumable.timeout_ms) + _data(resumable.password)


def _decode_resumable(reader: _Reader) -> Resumable:
    (timeout_ms,) = reader.unpack(_I32)
    return Resumable(timeout_ms, reader.data() or b"")


def _encode_acl(acl: Acl) -> bytes:
    entries = (_I32.pack(each.permissions) + _string(each.scheme) + _string(each.id) for each in acl)
    return _U16.pack(len(acl)) + b"".join(entries)


def _decode_acl(reader: _Reader) -> Acl:
    (count,) = reader.unpack(_U16)
    acl = tuple(AclEntry(reader.unpack(_I32)[0], reader.string(), reader.string()) for _ in range(count))
    return OPEN if acl == OPEN else acl


def _encode_access(path: str, node: Znode) -> bytes:
    return _string(path) + _I32.pack(node.acl_version) + _encode_acl(node.acl)


def _encode_operation(operation: TreeOperation) -> bytes:
    match operation:
        case Create(path, data, ephemeral, sequential, acl):
            flags = (_EPHEMERAL if ephemeral else 0) | (_SEQUENTIAL if sequential else 0)
            if acl is OPEN:
                return bytes((_CREATE, flags)) + _string(path) + _data(data)
            return bytes((_CREATE_GUARDED, flags)) + _string(path) + _data(data) + _encode_acl(acl)
        case SetAcl(path, acl, version):
            return bytes((_SET_ACL,)) + _string(path) + _I32.pack(version) + _encode_acl(acl)
        case SetData(path, data, version):
            return bytes((_SET_DATA,)) + _string(path) + _I32.pack(version) + _data(data)
        case Delete(path, version):
            return bytes((_DELETE,)) + _string(path) + _I32.pack(version)
        case Check(path, version):
            return bytes((_CHECK,)) + _string(path) + _I32.pack(version)


def _decode_operation(reader: _Reader) -> TreeOperation:
    (kind,) = reader.unpack(_U8)
    if kind in {_CREATE, _CREATE_GUARDED}:
        (flags,) = reader.unpack(_U8)
        path, data = reader.string(), reader.data()
        acl = OPEN if kind == _CREATE else _decode_acl(reader)
        return Create(path, data, bool(flags & _EPHEMERAL), bool(flags & _SEQUENTIAL), acl)
    path = reader.string()
    (version,) = reader.unpack(_I32)
    if kind == _SET_DATA:
        return SetData(path, reader.data(), version)
    if kind == _DELETE:
        return Delete(path, version)
    if kind == _CHECK:
        return Check(path, version)
    if kind == _SET_ACL:
        return SetAcl(path, _decode_acl(reader), version)
    raise FormatError(f"unknown operation {kind}")


def _decode_transaction(reader: _Reader) -> tuple[Transaction, int, int]:
    zxid, now_ms, kind, session_id = reader.unpack(_TRANSACTION_HEAD)
    if kind == _CREATE_SESSION:
        return CreateSession(session_id), zxid, now_ms
    if kind == _CREATE_RESUMABLE:
        return CreateSession(session_id, _decode_resumable(reader)), zxid, now_ms
    if kind == _CLOSE_SESSION:
        return CloseSession(session_id), zxid, now_ms
    if kind == _MULTI:
        (count,) = reader.unpack(_COUNT)
        return Multi(session_id, tuple(_decode_operation(reader) for _ in range(count))), zxid, now_ms
    raise FormatError(f"unknown transaction {kind}")


def _encode_node(path: str, node: Znode) -> bytes:
    numbers = _NODE.pack(
        node.czxid,
        node.mzxid,
        node.pzxid,
        node.ctime_ms,
        node.mtime_ms,
        node.version,
        node.creations,
        node.ephemeral_owner,
    )
    return _string(path) + numbers + _data(node.data)


def _decode_node(reader: _Reader) -> tuple[str, Znode]:
    path = reader.string()
    czxid, mzxid, pzxid, ctime_ms, mtime_ms, version, creations, owner = reader.unpack(_NODE)
    node = Znode(reader.data(), czxid, ctime_ms, owner)
    node.mzxid, node.pzxid, node.mtime_ms, node.version, node.creations = mzxid, pzxid, mtime_ms, version, creations
    return path, node
