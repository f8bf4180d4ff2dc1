"""Reads a topic and writes its values in capitals to another one, exactly once, with confluent-kafka:
`python -m ... ADDRESS TRANSACTIONAL_ID`. It exits on an error that is fatal for the producer.

send_offsets_to_transaction may miss the return of the group's coordinator, and then never returns, whatever its timeout
(librdkafka issue 5456). Such a loop exits with TRY_AGAIN, to be restarted.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.compat.exactly_once.program import TRY_AGAIN
from tests.compat.steady_load import IMPATIENT

T = TypeVar("T")
_MOST_RECORDS = 50
_TIMEOUT_S = 5.0
_HANGS_S = 2 * _TIMEOUT_S


class Loop:
    """One consumer and one producer."""

    def __init__(self, address: str, transactional_id: str) -> None:
        common: dict[str, str | int | bool] = {"bootstrap.servers": address, **IMPATIENT}
        self._producer = Producer({**common, "transactional.id": transactional_id})
        self._consumer = Consumer(
            {
                **common,
                "group.id": "transform",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 1_000,
            }
        )
        self._was_revoked = False

    def run(self) -> NoReturn:
        _retry(lambda: self._producer.init_transactions(_TIMEOUT_S))
        self._consumer.subscribe(["input"], on_revoke=self._revoked, on_lost=self._revoked)
        while True:
            self._was_revoked = False
            messages = self._consumer.consume(_MOST_RECORDS, 0.05)
            records = [message for message in messages if message.error() is None]
            for error in (message.error() for message in messages):
                if error is not None:
                    print(error, file=sys.stderr, flush=True)
            if self._was_revoked:
                self._rewind()  # some of the records may belong to partitions that another member has now
            elif records:
                self._transform(records)

    def _revoked(self, *_: object) -> None:
        self._was_revoked = True

    def _transform(self, records: list[Message]) -> None:
        self._producer.begin_transaction()
        offsets: dict[int, int] = {}
        try:
            for record in records:
                partition, offset, value = record.partition(), record.offset(), record.value()
                assert partition is not None
                assert offset is not None
                assert value is not None
                self._producer.produce("output", key=record.key(), value=value.upper(), partition=partition)
                offsets[partition] = offset + 1
            done = [TopicPartition("input", partition, offset) for partition, offset in offsets.items()]
            group = self._consumer.consumer_group_metadata()
            with _exit_when_it_hangs():
                _retry(lambda: self._producer.send_offsets_to_transaction(done, group, _TIMEOUT_S))
            _retry(lambda: self._producer.commit_transaction(_TIMEOUT_S))
        except KafkaException as error:
            if not _error(error).txn_requires_abort():
                raise
            print(f"aborting after {error}", file=sys.stderr, flush=True)
            _retry(lambda: self._producer.abort_transaction(_TIMEOUT_S))
            self._rewind()

    def _rewind(self) -> None:
        """Seek to the committed offsets."""
        assigned = self._consumer.assignment()
        if assigned:
            self._consumer.assign(_retry(lambda: self._consumer.committed(assigned, _TIMEOUT_S)))


def _error(exception: KafkaException) -> KafkaError:
    error = exception.args[0]
    assert isinstance(error, KafkaError)
    return error


@contextlib.contextmanager
def _exit_when_it_hangs() -> Iterator[None]:
    watch = threading.Timer(_HANGS_S, os._exit, [TRY_AGAIN])
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def _retry(call: Callable[[], T]) -> T:
    """Retry while the call raises a temporary error."""
    while True:
        try:
            return call()
        except KafkaException as exception:
            if not _error(exception).retriable() and _error(exception).code() != KafkaError._TIMED_OUT:
                raise


if __name__ == "__main__":
    Loop(sys.argv[1], sys.argv[2]).run()
