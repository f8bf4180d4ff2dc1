"""Which transactions of a segment were aborted (Kafka classes `TransactionIndex`, `AbortedTxn`; file `.txnindex`).

Entries of 34 bytes, in the order of the markers. Unlike the other two indexes this one tells something that a reader
needs to be right, not just to be fast.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class AbortedTxn(NamedTuple):
    """A transaction whose records from `first_offset` to the marker at `last_offset` do not count.

    Every transaction that begins below `last_stable_offset` was decided when the marker was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_aborted(transactions: Iterable[AbortedTxn]) -> bytes:
    """The content of a `.txnindex` file."""
    return b"".join([_ENTRY.pack(_VERSION, *transaction) for transaction in transactions])


def decode_aborted(path: str, data: bytes) -> list[AbortedTxn]:
    """The entries of a `.txnindex` file, of which `path` is for the error. Raises ValueError for another version; an
    entry that is cut off at the end is left out.
    """
    found = []
    for version, *fields in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]):
        if version != _VERSION:
            raise ValueError(f"{path} has an entry of version {version}; only version {_VERSION} can be read")
        found.append(AbortedTxn(*fields))
    return found
