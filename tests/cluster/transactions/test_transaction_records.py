"""Records of __transaction_state: Kafka's formats, and unreadable ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.transactions.transaction_records import (
    TransactionLoader,
    TransactionMetadata,
    TransactionRecord,
    TransactionState,
    decode_key,
    decode_value,
)
from protocol.errors import DecodeError
from protocol.records.batch import Record, build_batch
from protocol.topic_partition import TopicPartition

EMPTY = TransactionMetadata(7, 2, 60_000, TransactionState.EMPTY, frozenset(), 5, -1)

partitions = st.frozensets(st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 9)))
states = st.sampled_from(list(TransactionState))
metadata = st.builds(
    TransactionMetadata,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.integers(1, 2**31 - 1),
    states,
    partitions,
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
)


@given(metadata)
def test_what_is_written_is_read(value: TransactionMetadata) -> None:
    if value.state is TransactionState.EMPTY:
        value = value.replace(partitions=frozenset())
    key, encoded = TransactionRecord("id", value).encode()
    assert decode_key(key) == "id"
    assert encoded is not None
    assert decode_value(encoded) == value


def test_without_a_transaction_the_partitions_are_null() -> None:
    _, value = TransactionRecord("id", EMPTY).encode()
    assert value == b"\0\0" + b"\0" * 7 + b"\7" + b"\0\2" + b"\0\0\xea\x60" + b"\0" + b"\xff" * 4 + (
        b"\0" * 7 + b"\5" + b"\xff" * 8
    )


def test_the_end_has_no_value() -> None:
    assert TransactionRecord("id", None).encode() == (b"\0\0\0\2id", None)


def test_keys_that_mean_something_else() -> None:
    assert decode_key(b"\0\1??") is None
    for key in (None, b"", b"\0"):
        with pytest.raises(DecodeError):
            decode_key(key)


def test_a_state_that_there_is_not() -> None:
    _, value = TransactionRecord("id", EMPTY).encode()
    assert value is not None
    with pytest.raises(DecodeError, match="9 is not a state of a transaction"):
        decode_value(value[:16] + b"\x09" + value[17:])


def test_a_load_keeps_the_last_value_and_leaves_out_what_it_cannot_read(caplog: pytest.LogCaptureFixture) -> None:
    first = TransactionRecord("a", EMPTY).encode()
    last = TransactionRecord("a", EMPTY.replace(producer_epoch=3)).encode()
    gone = TransactionRecord("b", EMPTY).encode()
    pairs = [first, gone, last, (gone[0], None), (b"\0\1??", b"x"), (TransactionRecord("c", None).encode()[0], b"\0\0")]
    loader = TransactionLoader()
    batch = build_batch([Record(0, 5, key, value) for key, value in pairs])
    assert loader.take(memoryview(batch)) == len(pairs)
    assert loader.take(memoryview(batch)[:-1]) is None
    assert loader.finish() == {"a": EMPTY.replace(producer_epoch=3)}
    assert "cannot be read" in caplog.text
