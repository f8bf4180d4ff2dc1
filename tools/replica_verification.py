"""kafka-replica-verification: compare the batches of all replicas (Kafka class `ReplicaVerificationTool`).

It fetches the batches of every replica from the same offsets on, as a debugging consumer, which followers answer, too.
Below the lowest high watermark, the offsets and checksums must be equal. It runs until it is stopped. A broker that
does not answer delays its partitions. A broker's response holds at most 50 MiB; partitions take turns at coming first.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from client import admin
from client.errors import ClientError
from client.kafka_client import FETCH, KafkaClient
from client.metadata import Metadata
from protocol.errors import ApiError, ErrorCode
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.records.batch import RecordBatch, read_batches
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID
from tools.support.common import ToolError, TopicFilter, make_client, now_ms, run_tool
from tools.support.error_texts import exception_text
from tools.support.options import Option, OptionParser, Options
from tools.support.terminal import Progress

logger = logging.getLogger("org.apache.kafka.tools.ReplicaVerificationTool")

DEBUGGING_CONSUMER_ID: Final = -2
_FIRST_VERSION_WITH_STATE: Final = 15
_MAX_BYTES: Final = 50 * 1024 * 1024
_PAUSE_S: Final = 0.5
"""Pause after a round with a broker that did not answer."""

PARSER = OptionParser(
    "Check that all replicas of topics have the same records.",
    [
        Option("broker-list", "Required: the brokers to connect to.", "host:port,..."),
        Option("fetch-size", "How much is fetched of a partition at once, in bytes.", "bytes", "Integer", "1048576"),
        Option("max-wait-ms", "How long a broker may wait for something new.", "ms", "Integer", "1000"),
        Option("topic-white-list", "The same as --topics-include, of older versions.", "regex", default=".*"),
        Option("topics-include", "A regular expression for the topics.", "regex", default=".*"),
        Option(
            "time", "The timestamp to begin at; -1 for the ends of the logs, -2 for their starts.", "ms", "Long", "-1"
        ),
        Option("report-interval-ms", "How often the largest lag is printed.", "ms", "Long", "30000"),
    ],
)


class Fetched(NamedTuple):
    """The batches from one replica."""

    high_watermark: int = -1
    batches: Sequence[RecordBatch] = ()


class VerificationLag(NamedTuple):
    """How far the check of a partition is behind its high watermark."""

    behind: int
    partition: TopicPartition
    offset: int


class UnequalReplicasError(ToolError):
    """The offsets of two replicas differ, so nothing after them can be compared."""


class ReplicaBuffer:
    """The batches of every replica in one round, and the checked offset of each partition."""

    def __init__(self, replicas: Mapping[TopicPartition, Sequence[int]], offsets: Mapping[TopicPartition, int]) -> None:
        """`replicas` are the brokers that hold each partition; the check begins at `offsets`."""
        self.replicas = {name: sorted(held) for name, held in replicas.items()}
        self.offsets = dict(offsets)
        self._fetched: dict[TopicPartition, dict[int, Fetched]] = {name: {} for name in replicas}

    def add(self, name: TopicPartition, broker_id: int, fetched: Fetched) -> None:
        """Add the batches of one replica."""
        self._fetched[name][broker_id] = fetched

    def verify(self) -> VerificationLag:
        """Compare the replicas and print differences; returns the largest lag. Raises UnequalReplicasError."""
        worst: VerificationLag | None = None
        for name, brokers in self.replicas.items():
            fetched = {broker_id: self._fetched[name].get(broker_id, Fetched()) for broker_id in brokers}
            self._fetched[name] = {}
            for batches in _in_step(fetched):
                _compare(name, dict(zip(brokers, batches, strict=True)))
                self.offsets[name] = batches[0].last_offset + 1
            high_watermark = max(each.high_watermark for each in fetched.values())
            lag = VerificationLag(high_watermark - self.offsets[name], name, self.offsets[name])
            if worst is None or lag.behind > worst.behind:
                worst = lag
        assert worst is not None
        return worst


def _in_step(fetched: Mapping[int, Fetched]) -> Iterable[tuple[RecordBatch, ...]]:
    """The next batch of each replica, while all have one below their high watermarks."""
    committed = (
        [batch for batch in each.batches if batch.last_offset < each.high_watermark] for each in fetched.values()
    )
    return zip(*committed, strict=False)


def _compare(name: TopicPartition, batches: Mapping[int, RecordBatch]) -> None:
    """Print different checksums. Raises UnequalReplicasError for different offsets."""
    (first_id, first), *others = batches.items()
    for broker_id, batch in others:
        if batch.last_offset != first.last_offset:
            raise UnequalReplicasError(
                f"{_timestamp()}: partition {name}: replica {first_id}'s offset {first.last_offset} doesn't match "
                f"replica {broker_id}'s offset {batch.last_offset}"
            )
        if batch.crc != first.crc:
            print(
                f"{_timestamp()}: partition {name} has unmatched checksum at offset {batch.last_offset}; replica "
                f"{first_id}'s checksum {first.crc}; replica {broker_id}'s checksum {batch.crc}",
                flush=True,
            )


def _timestamp() -> str:
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]


class VerificationFetcher:
    """Fetches the replicas of one broker."""

    def __init__(self, client: KafkaClient, broker_id: int, metadata: Metadata, options: Options) -> None:
        self._client = client
        self._broker_id = broker_id
        self._topics = metadata.topics
        self._names = metadata.topic_names
        self._max_wait_ms = options.required_number("max-wait-ms")
        self._fetch_size = options.required_number("fetch-size")

    async def fetch(self, buffer: ReplicaBuffer, partitions: Iterable[TopicPartition]) -> bool:
        """Fetch into the buffer; returns whether the broker answered."""
        asked: dict[str, list[FetchRequest.FetchPartition]] = defaultdict(list)
        for name in partitions:
            asked[name.topic].append(
                FetchRequest.FetchPartition(
                    partition=name.partition,
                    fetch_offset=buffer.offsets[name],
                    log_start_offset=0,
                    partition_max_bytes=self._fetch_size,
                )
            )
        try:
            response = await self._ask(asked)
            if response.error_code:
                raise ApiError(ErrorCode.of(response.error_code))
        except (ApiError, ClientError) as error:
            logger.debug("Broker %d gave nothing: %s", self._broker_id, error)
            return False
        for topic in response.responses:
            topic_name = topic.topic or self._names[topic.topic_id]
            for each in topic.partitions:
                batches = list(read_batches(memoryview(each.records or b"")))
                name = TopicPartition(topic_name, each.partition_index)
                buffer.add(name, self._broker_id, Fetched(each.high_watermark, batches))
        return True

    async def _ask(self, asked: Mapping[str, list[FetchRequest.FetchPartition]]) -> FetchResponse:
        connection = await self._client.node_connection(self._broker_id, FETCH)
        ids = {name: self._topics[name].topic_id for name in asked}
        version = connection.version_of(FetchRequest, 12 if ZERO_UUID in ids.values() else None)
        request = FetchRequest(
            max_wait_ms=self._max_wait_ms,
            min_bytes=1,
            max_bytes=_MAX_BYTES,
            topics=[
                FetchRequest.FetchTopic(topic=name, topic_id=ids[name], partitions=each) for name, each in asked.items()
            ],
        )
        if version < _FIRST_VERSION_WITH_STATE:
            request.replica_id = DEBUGGING_CONSUMER_ID
        else:
            request.replica_state = FetchRequest.ReplicaState(replica_id=DEBUGGING_CONSUMER_ID)
        timeout_ms = self._client.settings.request_timeout_ms + self._max_wait_ms
        return await connection.ask(request, FetchResponse, version, timeout_ms)


async def work(options: Options) -> int:
    """Check round after round."""
    topics = TopicFilter(
        options.required_text("topics-include" if options.has("topics-include") else "topic-white-list")
    )
    async with make_client(options.required_text("broker-list"), client_id="ReplicaVerification") as client:
        metadata = await admin.list_topics(client)
        replicas = {
            TopicPartition(topic.name, each.partition): each.replicas
            for topic in metadata.topics.values()
            if topics.allows(topic.name, topic.is_internal)
            for each in topic.partitions.values()
        }
        if not replicas:
            raise ToolError(
                "No topics found. [topics-include] if specified, is either filtering out all topics or there is no "
                "topic."
            )
        wanted = options.required_number("time")
        buffer = ReplicaBuffer(replicas, await initial_offsets(client, replicas, wanted))
        brokers = dict.fromkeys(each for held in replicas.values() for each in held)
        fetchers = {broker_id: VerificationFetcher(client, broker_id, metadata, options) for broker_id in brokers}
        print(f"{_timestamp()}: verification process is started", flush=True)
        await verify(buffer, fetchers, options.required_number("report-interval-ms"))
    return 0


async def initial_offsets(
    client: KafkaClient, partitions: Iterable[TopicPartition], timestamp: int
) -> dict[TopicPartition, int]:
    """Where the check begins. Raises ApiError for a partition without leader."""
    offsets = {}
    for name, found in (await admin.list_offsets(client, dict.fromkeys(partitions, timestamp))).items():
        if isinstance(found, ApiError):
            raise found
        offsets[name] = max(found.offset, 0)
    return offsets


async def verify(buffer: ReplicaBuffer, fetchers: Mapping[int, VerificationFetcher], report_interval_ms: int) -> None:
    """Fetch and compare forever, and print the largest lag regularly. Raises UnequalReplicasError."""
    partitions = list(buffer.replicas)
    reported_ms = now_ms()
    with Progress("Comparing replicas", "rounds") as progress:
        while True:
            answered = await asyncio.gather(
                *(
                    fetcher.fetch(buffer, [name for name in partitions if broker_id in buffer.replicas[name]])
                    for broker_id, fetcher in fetchers.items()
                )
            )
            lag = buffer.verify()
            if now_ms() - reported_ms > report_interval_ms:
                reported_ms = now_ms()
                where = f"for partition {lag.partition} at offset {lag.offset} among {len(partitions)} partitions"
                print(f"{_timestamp()}: max lag is {lag.behind} {where}", flush=True)
            partitions.append(partitions.pop(0))
            if not all(answered):
                await asyncio.sleep(_PAUSE_S)
            progress.advance()


def fail(error: BaseException) -> None:
    """Print a difference on standard output like the others, and any other failure on standard error."""
    if isinstance(error, UnequalReplicasError):
        print(error)
    else:
        print(exception_text(error) if isinstance(error, ApiError) else error, file=sys.stderr)


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, lambda options: options.require("broker-list"), work, fail=fail)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
