"""Reads a topic and writes its values in capitals to another one, exactly once, with aiokafka:
`python -m ... ADDRESS TRANSACTIONAL_ID`. It exits on an error that is fatal for the producer, and with TRY_AGAIN if no
broker is up at the start, or the broker dies then: aiokafka does not wait for one.

It commits offsets without the generation of its consumer (KIP-447), so only one process may run at a time.
"""

from __future__ import annotations

import asyncio
import sys
from typing import NoReturn

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError, ProducerFenced

from tests.compat.exactly_once.program import TRY_AGAIN

_GROUP = "transform"


class OneAfterTheOther(ConsumerRebalanceListener):
    """Partitions are revoked between two transactions: their next owner then finds the offsets of the last one."""

    def __init__(self, transaction: asyncio.Lock) -> None:
        self._transaction = transaction

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        await self._transaction.acquire()

    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        if self._transaction.locked():
            self._transaction.release()


class Loop:
    """One consumer and one producer."""

    def __init__(self, address: str, transactional_id: str) -> None:
        self._transaction = asyncio.Lock()
        self._producer = AIOKafkaProducer(
            bootstrap_servers=address, transactional_id=transactional_id, retry_backoff_ms=50
        )
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=address,
            group_id=_GROUP,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_000,
            max_poll_records=50,
            retry_backoff_ms=50,
        )

    async def run(self) -> NoReturn:
        self._consumer.subscribe(["input"], listener=OneAfterTheOther(self._transaction))
        try:
            await self._producer.start()
            await self._consumer.start()
        except KafkaError as error:
            if not any(isinstance(each, KafkaConnectionError) for each in (error, error.__cause__)):
                raise
            print(f"not started: {error!r}", file=sys.stderr, flush=True)
            sys.exit(TRY_AGAIN)
        while True:
            async with self._transaction:
                batches = await self._consumer.getmany(timeout_ms=50)
                if batches:
                    await self._transform(batches)

    async def _transform(self, batches: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        try:
            async with self._producer.transaction():
                for partition, records in batches.items():
                    for record in records:
                        value = record.value.upper()
                        await self._producer.send("output", value, record.key, partition.partition)
                offsets = {partition: records[-1].offset + 1 for partition, records in batches.items()}
                await self._producer.send_offsets_to_transaction(offsets, _GROUP)
        except ProducerFenced:
            raise
        except KafkaError as error:
            print(f"aborted after {error!r}", file=sys.stderr, flush=True)
            await self._consumer.seek_to_committed()


async def main() -> NoReturn:
    """The clients must be created on a running loop."""
    await Loop(sys.argv[1], sys.argv[2]).run()


if __name__ == "__main__":
    asyncio.run(main())
