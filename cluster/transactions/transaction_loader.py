"""Builds the transactional ids of a partition of __transaction_state from its log."""

from __future__ import annotations

import logging

from cluster.transactions.transaction_records import TransactionMetadata, decode_key, decode_value
from protocol.errors import ApiError, DecodeError
from protocol.records.batch import read_batches

logger = logging.getLogger("kafka.coordinator.transaction.TransactionStateManager")


class TransactionLoader:
    """Takes the log chunk by chunk with `take`; `finish` gives the transactional ids.

    Values are kept as bytes, the last one of each key, and only those that are left in the end are decoded. Uses
    nothing that anybody else uses, so it may run on any thread.
    """

    def __init__(self) -> None:
        self._latest: dict[bytes | None, bytes] = {}

    def take(self, batches: memoryview) -> int | None:
        """Take the complete batches that `batches` begins with; gives the offset behind them, or None without any.

        Raises ApiError for a batch whose records cannot be read.
        """
        next_offset, latest = None, self._latest
        for batch in read_batches(batches):
            next_offset = batch.next_offset
            if batch.is_control:
                continue
            for _, _, key, value, _ in batch.records():
                if value is None:
                    latest.pop(key, None)
                else:
                    latest[key] = value
        return next_offset

    def finish(self) -> dict[str, TransactionMetadata]:
        """The transactional ids. A record that cannot be read is logged and left out. The loader is empty then."""
        found = {}
        while self._latest:
            key, value = self._latest.popitem()
            try:
                transactional_id = decode_key(key)
                if transactional_id is not None:
                    found[transactional_id] = decode_value(value)
            except (DecodeError, ApiError) as error:
                logger.error("A record of __transaction_state cannot be read and is left out: %s", error)
        return found
