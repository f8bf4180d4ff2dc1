"""ZooKeeper's wire protocol as its clients speak it: jute records in frames (zookeeper.jute, ZooDefs, KeeperException).

A frame is a length (i32) and that many bytes. All integers are big-endian; a string or buffer is its length (-1: null)
and its bytes, a vector its count and its elements. The first frame of a connection is a ConnectRequest, the first
response a ConnectResponse; after them, each request begins with xid and type, and each reply with xid, zxid and error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from environment.sliced import Sliced
from zookeeper.access_control import Acl, AclEntry
from zookeeper.coordination import (
    BadArgumentsError,
    BadVersionError,
    Check,
    CoordinationError,
    Create,
    Delete,
    EventType,
    InvalidAclError,
    MultiError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    OperationResult,
    SessionExpiredError,
    SetData,
    WatchEvent,
    ZnodeStat,
)

MOST_FRAME_BYTES: Final = 0xFFFFF
"""ZooKeeper's default of jute.maxbuffer."""
PASSWORD_BYTES: Final = 16
WATCH_XID: Final = -1

_BOOL = struct.Struct(">?")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_STAT = struct.Struct(">qqqqiiiqiiq")
_REPLY_HEADER = struct.Struct(">iiqi")
_REPLY_HEADER_BYTES = 16
_CONNECT_RESPONSE = struct.Struct(">iiqi16s")
_MULTI_HEADER = struct.Struct(">i?i")
_EVENT_HEAD = struct.Struct(">ii")
_END_OF_MULTI = _MULTI_HEADER.pack(-1, True, -1)
_ERROR_RESULT = -1
_CONNECTED_STATE = 3


class WireError(Exception):
    """Bytes that are not a frame of this protocol."""


class UnimplementedError(CoordinationError):
    """The server does not support this operation."""


class MarshallingError(CoordinationError):
    """A request of a known type that is malformed."""


class OpCode(IntEnum):
    """The supported requests (ZooDefs.OpCode)."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    CLOSE_SESSION = -11


_ERROR_CODES: dict[type[CoordinationError], int] = {
    MarshallingError: -5,
    UnimplementedError: -6,
    BadArgumentsError: -8,
    NoNodeError: -101,
    NoAuthError: -102,
    BadVersionError: -103,
    NoChildrenForEphemeralsError: -108,
    NodeExistsError: -110,
    NotEmptyError: -111,
    SessionExpiredError: -112,
    InvalidAclError: -114,
}
ResolveAcl = Callable[[Iterable[AclEntry]], Acl]
"""Turns a requested list into a storable one."""

_SYSTEM_ERROR = -1
_ROLLED_BACK, _NOT_TRIED = 0, -2
AUTH_FAILED: Final = -115

_EVENT_CODES = {
    EventType.CREATED: 1,
    EventType.DELETED: 2,
    EventType.DATA_CHANGED: 3,
    EventType.CHILDREN_CHANGED: 4,
}


def error_code(error: Exception) -> int:
    """The KeeperException code of an error."""
    return _ERROR_CODES.get(type(error), _SYSTEM_ERROR) if isinstance(error, CoordinationError) else _SYSTEM_ERROR


class ConnectRequest(NamedTuple):
    """The first frame of a client. `session_id` is 0 for a new session. `has_read_only` tells whether the last field
    was present; clients before ZooKeeper 3.4 do not send it.
    """

    last_zxid_seen: int
    timeout_ms: int
    session_id: int
    password: bytes
    has_read_only: bool


class SetWatches(NamedTuple):
    """The watches of a reconnected client that has seen all changes up to `last_zxid_seen`."""

    last_zxid_seen: int
    data: list[str]
    absent: list[str]
    children: list[str]


class RecordReader:
    """Reads one field after another. Raises MarshallingError if the frame is too short or a length is too large."""

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._position = 0

    @property
    def exhausted(self) -> bool:
        """Whether everything was read."""
        return self._position >= len(self._frame)

    def boolean(self) -> bool:
        """One byte."""
        return bool(self._unpack(_BOOL))

    def i32(self) -> int:
        """An int."""
        return self._unpack(_I32)

    def i64(self) -> int:
        """A long."""
        return self._unpack(_I64)

    def buffer(self) -> bytes | None:
        """Bytes, or null."""
        length = self.i32()
        if length < 0:
            return None
        start, self._position = self._position, self._position + length
        if self._position > len(self._frame):
            raise MarshallingError(f"{length} bytes were promised, {len(self._frame) - start} are there")
        return self._frame[start : self._position]

    def string(self) -> str:
        """Text; null becomes the empty string."""
        data = self.buffer() or b""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise MarshallingError(f"not UTF-8: {data!r}") from error

    def strings(self) -> list[str]:
        """A vector of strings; null becomes the empty list."""
        return [self.string() for _ in range(self.i32())]

    def _unpack(self, layout: struct.Struct) -> int:
        try:
            (value,) = layout.unpack_from(self._frame, self._position)
        except struct.error as error:
            raise MarshallingError("the request ends early") from error
        self._position += layout.size
        return int(value)


# -- requests ----------------------------------------------------------------------------------------------------------


def read_connect_request(frame: bytes) -> ConnectRequest:
    """The first frame of a connection. Raises WireError."""
    reader = RecordReader(frame)
    try:
        reader.i32()  # the protocol's version, which is 0
        last_zxid_seen, timeout_ms, session_id = reader.i64(), reader.i32(), reader.i64()
        password = reader.buffer() or b""
    except MarshallingError as error:
        raise WireError(f"not a ConnectRequest: {error}") from error
    return ConnectRequest(last_zxid_seen, timeout_ms, session_id, password, not reader.exhausted)


def read_operation(code: int, reader: RecordReader, resolve: ResolveAcl) -> Operation:
    """A write or a check. `resolve` makes the access control list of a new node. Raises UnimplementedError,
    MarshallingError, BadArgumentsError.
    """
    match code:
        case OpCode.CREATE | OpCode.CREATE2:
            path, data, acl = reader.string(), reader.buffer(), read_acl(reader, resolve)
            flags = reader.i32()
            if flags in {4, 5, 6}:
                raise UnimplementedError(f"containers and nodes with a time to live are not implemented: {path}")
            if not 0 <= flags <= 3:
                raise BadArgumentsError(f"flags {flags} of {path}")
            return Create(path, data, bool(flags & 1), bool(flags & 2), acl)
        case OpCode.DELETE:
            return Delete(reader.string(), reader.i32())
        case OpCode.SET_DATA:
            return SetData(reader.string(), reader.buffer(), reader.i32())
        case OpCode.CHECK:
            return Check(reader.string(), reader.i32())
    raise UnimplementedError(f"operation {code}")


def read_acl(reader: RecordReader, resolve: ResolveAcl) -> Acl:
    """An access control list, as returned by `resolve`. Raises MarshallingError."""
    return resolve([AclEntry(reader.i32(), reader.string(), reader.string()) for _ in range(reader.i32())])


def read_multi(
    reader: RecordReader, resolve: ResolveAcl, should_yield: Callable[[], bool]
) -> Sliced[tuple[list[int], list[Operation]]]:
    """The codes and operations of a multi, with a pause whenever `should_yield` says so. Raises as `read_operation`."""
    codes: list[int] = []
    operations: list[Operation] = []
    while True:
        code, done, _ = reader.i32(), reader.boolean(), reader.i32()
        if done:
            return codes, operations
        codes.append(code)
        operations.append(read_operation(code, reader, resolve))
        if should_yield():
            yield


def read_multi_read(reader: RecordReader) -> list[tuple[int, str]]:
    """The codes and paths of a multi-read. Raises UnimplementedError, MarshallingError."""
    reads: list[tuple[int, str]] = []
    while True:
        code, done, _ = reader.i32(), reader.boolean(), reader.i32()
        if done:
            return reads
        if code not in {OpCode.GET_DATA, OpCode.GET_CHILDREN}:
            raise UnimplementedError(f"operation {code} among reads")
        reads.append((code, reader.string()))
        reader.boolean()  # multi-reads ignore the watch flag


def read_set_watches(reader: RecordReader) -> SetWatches:
    """The watches of a reconnected client. Raises MarshallingError."""
    return SetWatches(reader.i64(), reader.strings(), reader.strings(), reader.strings())


# -- answers -----------------------------------------------------------------------------------------------------------


def connect_response(request: ConnectRequest, timeout_ms: int, session_id: int, password: bytes) -> bytes:
    """The response to a ConnectRequest; a timeout of 0 means that the session has expired."""
    end = _BOOL.pack(False) if request.has_read_only else b""
    body = _CONNECT_RESPONSE.pack(0, timeout_ms, session_id, PASSWORD_BYTES, password) + end
    return _I32.pack(len(body)) + body


def reply(xid: int, zxid: int, error: int = 0, body: bytes = b"") -> bytes:
    """The frame of a reply."""
    return _REPLY_HEADER.pack(_REPLY_HEADER_BYTES + len(body), xid, zxid, error) + body


def watch_event(event: WatchEvent) -> bytes:
    """The frame of a notification. It carries zxid -1: clients take theirs from replies."""
    body = _EVENT_HEAD.pack(_EVENT_CODES[event.type], _CONNECTED_STATE) + encode_string(event.path)
    return reply(WATCH_XID, -1, 0, body)


def encode_string(text: str) -> bytes:
    """A string."""
    return encode_buffer(text.encode())


def encode_buffer(data: bytes | None) -> bytes:
    """A buffer, or null."""
    return _I32.pack(-1) if data is None else _I32.pack(len(data)) + data


def encode_strings(texts: Sequence[str]) -> bytes:
    """A vector of strings."""
    return b"".join((_I32.pack(len(texts)), *map(encode_string, texts)))


def encode_stat(stat: ZnodeStat) -> bytes:
    """ZooKeeper's Stat."""
    czxid, mzxid, ctime_ms, mtime_ms, version, cversion, owner, length, children, pzxid, acl_version = stat
    return _STAT.pack(czxid, mzxid, ctime_ms, mtime_ms, version, cversion, acl_version, owner, length, children, pzxid)


def encode_acl(acl: Acl) -> bytes:
    """An access control list."""
    entries = (_I32.pack(each.permissions) + encode_string(each.scheme) + encode_string(each.id) for each in acl)
    return _I32.pack(len(acl)) + b"".join(entries)


def encode_multi_results(
    codes: Sequence[int],
    results: Sequence[OperationResult],
    stat_of: Callable[[str], ZnodeStat],
    should_yield: Callable[[], bool],
) -> Sliced[bytes]:
    """The response to a multi that succeeded, with a pause whenever `should_yield` says so. `stat_of` returns the
    stat of a created node, for Create2.
    """
    parts = []
    for code, result in zip(codes, results, strict=True):
        parts.append(_MULTI_HEADER.pack(code, False, 0))
        if isinstance(result, ZnodeStat):
            parts.append(encode_stat(result))
        elif result is not None:
            parts.append(encode_string(result))
            if code == OpCode.CREATE2:
                parts.append(encode_stat(stat_of(result)))
        if should_yield():
            yield
    return b"".join((*parts, _END_OF_MULTI))


def encode_multi_read(results: Iterable[tuple[int, bytes | CoordinationError]]) -> bytes:
    """The response to a multi-read: code and body of each read, or its error."""
    parts = []
    for code, result in results:
        if isinstance(result, CoordinationError):
            error = error_code(result)
            parts.append(_MULTI_HEADER.pack(_ERROR_RESULT, False, error) + _I32.pack(error))
        else:
            parts.append(_MULTI_HEADER.pack(code, False, 0) + result)
    return b"".join((*parts, _END_OF_MULTI))


def encode_multi_error(codes: Sequence[int], error: MultiError) -> bytes:
    """The response to a failed multi: operations before the failed one were rolled back, later ones never tried."""
    cause = error_code(error.__cause__) if isinstance(error.__cause__, CoordinationError) else _SYSTEM_ERROR
    parts = []
    for index in range(len(codes)):
        code = _ROLLED_BACK if index < error.index else cause if index == error.index else _NOT_TRIED
        parts.append(_MULTI_HEADER.pack(_ERROR_RESULT, False, code) + _I32.pack(code))
    return b"".join((*parts, _END_OF_MULTI))
