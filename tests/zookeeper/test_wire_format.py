"""Requests of ZooKeeper's wire protocol, from valid and invalid clients."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.protocol import serialization as kazoo
from kazoo.security import OPEN_ACL_UNSAFE

from environment.sliced import never, run_to_end
from zookeeper.coordination import (
    Check,
    CoordinationError,
    Create,
    Delete,
    MultiError,
    NoNodeError,
    SetData,
    ZnodeStat,
)
from zookeeper.wire_format import (
    MarshallingError,
    OpCode,
    RecordReader,
    WireError,
    encode_multi_error,
    encode_multi_results,
    read_connect_request,
    read_multi,
    read_operation,
    read_set_watches,
)

PIECES = st.one_of(
    st.binary(max_size=40),
    st.integers(-(2**31), 2**31 - 1).map(lambda number: struct.pack(">i", number)),
    st.sampled_from([1, 2, 5, 13, 14, 15, 19]).map(lambda number: struct.pack(">i", number)),
    st.just(b"\0\0\0\x02/a"),
)


@given(st.lists(PIECES, max_size=12).map(b"".join))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    for code in (*OpCode, 0, 22):
        with contextlib.suppress(CoordinationError):
            read_operation(code, RecordReader(data), tuple)
    with contextlib.suppress(CoordinationError):
        run_to_end(read_multi(RecordReader(data), tuple, never))
    with contextlib.suppress(MarshallingError):
        read_set_watches(RecordReader(data))
    with contextlib.suppress(WireError):
        read_connect_request(data)


def test_what_kazoo_sends_is_understood() -> None:
    request = kazoo.Transaction(
        [
            kazoo.Create("/a", None, OPEN_ACL_UNSAFE, 0),
            kazoo.Create("/b", b"", OPEN_ACL_UNSAFE, 1),
            kazoo.Create2("/c", b"x", OPEN_ACL_UNSAFE, 3),
            kazoo.SetData("/ä", b"y", 4),
            kazoo.Delete("/a", -1),
            kazoo.CheckVersion("/b", 0),
        ]
    )
    codes, operations = run_to_end(read_multi(RecordReader(bytes(request.serialize())), tuple, never))
    assert codes == [1, 1, 15, 5, 2, 13]
    assert operations == [
        Create("/a", None),
        Create("/b", b"", ephemeral=True),
        Create("/c", b"x", ephemeral=True, sequential=True),
        SetData("/ä", b"y", 4),
        Delete("/a", -1),
        Check("/b", 0),
    ]


def test_kazoo_understands_the_answer_to_a_transaction() -> None:
    stat = ZnodeStat(*range(10))
    answer = run_to_end(encode_multi_results([1, 5, 2], ["/a", stat, None], lambda _: stat, never))
    path, changed, deleted = kazoo.Transaction.deserialize(answer, 0)
    assert (path, deleted) == ("/a", True)
    assert (changed.czxid, changed.version, changed.acl_version, changed.pzxid) == (0, 4, 0, 9)
    failed = encode_multi_error([1, 2, 5], MultiError(1, NoNodeError("no node /b")))
    assert [error.code for error in kazoo.Transaction.deserialize(failed, 0)] == [0, -101, -2]


def test_a_large_transaction_is_read_and_answered_in_slices() -> None:
    request = kazoo.Transaction([kazoo.Delete(f"/{number}", -1) for number in range(4)])
    assert len(list(read_multi(RecordReader(bytes(request.serialize())), tuple, lambda: True))) == 4
    stat = ZnodeStat(*range(10))
    assert len(list(encode_multi_results([2] * 4, [None] * 4, lambda _: stat, lambda: True))) == 4


@pytest.mark.parametrize("cut", [4, 12, 20, 27])
def test_a_connect_request_that_ends_early_is_named(cut: int) -> None:
    whole = struct.pack(">iqiq", 0, 0, 6000, 0) + struct.pack(">i", 16) + bytes(16)
    assert read_connect_request(whole).has_read_only is False
    with pytest.raises(WireError, match="not a ConnectRequest"):
        read_connect_request(whole[:cut])
