"""Continuous transactions over all partitions of a topic, and the check of their results."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.compat.steady_load import PARTITIONS, Verdict

PATIENCE_S = 60.0


class Transfers(threading.Thread):
    """Writes the same number to every partition of a topic in each transaction, and commits two out of three.

    A producer that fails for good (fenced by another one, or by a timeout) is replaced by a new one with the same
    transactional id.
    """

    def __init__(self, address: str, topic: str, transactional_id: str) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self._address = address
        self._settings: dict[str, str | int] = {
            "bootstrap.servers": address,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "socket.timeout.ms": 3000,  # give up on a paused coordinator well before the transaction times out
        }
        self.security: dict[str, str] = {}
        """Settings of librdkafka for a secured listener, and its address."""
        self._stopping = threading.Event()
        self.acknowledged: list[int] = []
        """The numbers whose transactions were committed."""
        self.unknown: set[int] = set()
        """The numbers whose producer failed before it learned whether their transactions were committed."""
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Run until `stop`; errors for the test are in `failure`."""
        number = 0
        try:
            while not self._stopping.is_set():
                producer = Producer({**self._settings, **self.security})
                try:
                    _retry(lambda: producer.init_transactions(PATIENCE_S))  # noqa: B023  it is called at once
                    while not self._stopping.is_set():
                        number += 1
                        self._transfer(producer, number, commit=number % 3 != 0)
                except KafkaException as error:
                    if not error.args[0].fatal():
                        raise
        except BaseException as error:  # noqa: BLE001  the test is to see it
            self.failure = error

    def _transfer(self, producer: Producer, number: int, *, commit: bool) -> None:
        """Run one transaction. Raises KafkaException if the producer has failed for good."""
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(self.topic, str(number).encode(), partition=partition)
        try:
            if commit:
                self.unknown.add(number)
                _retry(lambda: producer.commit_transaction(PATIENCE_S))
                self.unknown.discard(number)
                self.acknowledged.append(number)
                return
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        _retry(lambda: producer.abort_transaction(PATIENCE_S))
        self.unknown.discard(number)

    def stop(self) -> None:
        """Begin no further transaction, and wait for the last one to end."""
        self._stopping.set()
        self.join(3 * PATIENCE_S)
        assert not self.is_alive()
        assert self.failure is None, self.failure

    def verdict(self) -> Verdict:
        """Compare the records that read_committed consumers get with the committed ones. The transfers must be stopped.

        Fails at once for an aborted number, and for one that only some of the partitions have.
        """
        in_doubt = []
        verdict = Verdict(acknowledged=len(self.acknowledged))
        for partition in range(PARTITIONS):
            numbers = self.committed_in(partition)
            aborted = set(numbers) - set(self.acknowledged) - self.unknown
            assert not aborted, f"aborted transactions are read from {self.topic}-{partition}: {sorted(aborted)}"
            in_doubt.append(self.unknown.intersection(numbers))
            verdict += Verdict(
                lost=len(set(self.acknowledged) - set(numbers)),
                doubled=sum(count - 1 for count in Counter(numbers).values()),
                reordered=sum(later < number for number, later in pairwise(numbers)),
            )
        assert all(each == in_doubt[0] for each in in_doubt), f"transactions are there in part: {in_doubt}"
        return verdict

    def committed_in(self, partition: int) -> list[int]:
        """The numbers in one partition that read_committed consumers get, up to the last stable offset."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        numbers = []
        try:
            consumer.assign([TopicPartition(self.topic, partition, 0)])
            while True:
                message = consumer.poll(PATIENCE_S)
                assert message is not None
                error, value = message.error(), message.value()
                if error is None and value is not None:
                    numbers.append(int(value))
                elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return numbers
        finally:
            consumer.close()


def _retry(call: Callable[[], None]) -> None:
    while True:
        try:
            call()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return
