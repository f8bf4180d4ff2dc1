"""Delivery of markers: to the current leader, with retries, and abandoned only if they are not needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from broker.transactions import marker_sender
from broker.transactions.marker_sender import MarkerSender, MarkerWork, WriteMarkers
from broker.transactions.marker_writer import Marker, MarkerResults
from cluster.metadata_image import MetadataImage, PartitionImage, TopicImage
from cluster.transactions.open_transactions import Markers
from protocol.errors import ErrorCode
from protocol.topic_partition import TRANSACTION_STATE, TopicPartition
from tests.kit.coordination_fixtures import in_loop
from tests.kit.environment import uuid_of
from tests.kit.waiting import eventually_on_loop

A, B = TopicPartition("t", 0), TopicPartition("t", 1)

Answer = Callable[[TopicPartition], ErrorCode]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_sender, "RETRY_S", 0.001)


class Place:
    """A cluster of brokers 1 and 2; `leaders` lead the partitions of topic `t`."""

    def __init__(self, *leaders: int) -> None:
        self.leaders = list(leaders)
        self.topics = ["t", TRANSACTION_STATE]
        self.asked: list[tuple[int, list[Marker]]] = []
        self.answers: dict[int, Answer | None] = {}
        """By broker; None stands for an unreachable one."""
        self.marked: list[TopicPartition] = []
        self.is_obsolete = False
        self.sender = MarkerSender(self.image, self.way_to)

    def image(self) -> MetadataImage:
        partitions = tuple(
            PartitionImage(at, leader, 0, (1, 2), (1, 2), 0, 0) for at, leader in enumerate(self.leaders)
        )
        topics = [TopicImage(name, uuid_of(number), partitions) for number, name in enumerate(self.topics, start=1)]
        return MetadataImage(cluster_id="c", brokers={}).with_topics(topics)

    def way_to(self, broker_id: int) -> WriteMarkers | None:
        if broker_id < 0:
            return None

        async def write(markers: Sequence[Marker]) -> MarkerResults:
            self.asked.append((broker_id, list(markers)))
            await asyncio.sleep(0)
            answer = self.answers.get(broker_id, lambda _: ErrorCode.NONE)
            if answer is None:
                return {}
            return {(each.producer_id, at): answer(at) for each in markers for at in each.partitions}

        return write

    def work(self, *partitions: TopicPartition, producer_id: int = 7) -> MarkerWork:
        markers = Markers("id", producer_id, 0, True, partitions)
        return MarkerWork(markers, 5, self.marked.extend, lambda: self.is_obsolete)

    async def all_marked(self, *partitions: TopicPartition) -> None:
        await eventually_on_loop("the markers", lambda: sorted(self.marked) == sorted(partitions), pause_s=0.001)
        await self.sender.close()


@in_loop
async def test_each_leader_gets_its_own() -> None:
    place = Place(1, 2)
    place.sender.send(place.work(A, B))
    assert place.asked == []
    await place.all_marked(A, B)
    assert place.asked == [(1, [Marker(7, 0, True, 5, [A])]), (2, [Marker(7, 0, True, 5, [B])])]


@in_loop
async def test_what_is_queued_goes_in_one_request() -> None:
    place = Place(1, 1)
    for producer_id in range(5):
        place.sender.send(place.work(A, producer_id=producer_id))
    await place.all_marked(*[A] * 5)
    assert [len(markers) for _, markers in place.asked] == [5]


@pytest.mark.parametrize(
    "error_code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        None,
    ],
)
@in_loop
async def test_a_new_leader_gets_what_the_old_one_did_not_take(error_code: ErrorCode | None) -> None:
    place = Place(1, 1)
    place.answers[1] = None if error_code is None else lambda at: ErrorCode.NONE if at == A else error_code
    place.sender.send(place.work(A, B))
    await eventually_on_loop("some attempts", lambda: len(place.asked) > 2, pause_s=0.001)
    place.leaders = [2, 2]
    await place.all_marked(A, B)
    assert B in place.asked[-1][1][0].partitions


@in_loop
async def test_a_partition_without_a_leader_waits_for_one() -> None:
    place = Place(-1)
    place.sender.send(place.work(A))
    await asyncio.sleep(0.01)
    assert not place.marked
    place.leaders = [2]
    await place.all_marked(A)


@in_loop
async def test_a_partition_that_is_no_more_needs_no_marker() -> None:
    place = Place(1)
    place.topics = [TRANSACTION_STATE]
    place.sender.send(place.work(A))
    await place.all_marked(A)
    assert place.asked == []


@in_loop
async def test_a_broker_that_knows_no_topic_yet_gives_up_none() -> None:
    place = Place(1)
    place.topics = []
    place.sender.send(place.work(A))
    await asyncio.sleep(0.01)
    assert not place.marked
    place.topics = ["t", TRANSACTION_STATE]
    await place.all_marked(A)


@pytest.mark.parametrize("error_code", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
@in_loop
async def test_a_deposed_coordinator_gives_up(error_code: ErrorCode) -> None:
    place = Place(1)
    place.answers[1] = lambda _: error_code
    place.sender.send(place.work(A))
    await asyncio.sleep(0.02)
    assert (len(place.asked), place.marked) == (1, [])
    await place.sender.close()


@in_loop
async def test_a_coordinator_that_has_resigned_is_forgotten() -> None:
    place = Place(1)
    place.answers[1] = None
    place.sender.send(place.work(A))
    await eventually_on_loop("an attempt", lambda: bool(place.asked), pause_s=0.001)
    place.is_obsolete = True
    await asyncio.sleep(0.01)
    asked = len(place.asked)
    await asyncio.sleep(0.01)
    assert len(place.asked) == asked
    await place.sender.close()


@in_loop
async def test_a_bug_does_not_lose_markers(caplog: pytest.LogCaptureFixture) -> None:
    place = Place(1)

    def fail(_: TopicPartition) -> ErrorCode:
        raise KeyError("a bug")

    place.answers[1] = fail
    place.sender.send(place.work(A))
    await eventually_on_loop("some attempts", lambda: len(place.asked) > 1, pause_s=0.001)
    del place.answers[1]
    await place.all_marked(A)
    assert "a bug" in caplog.text


@in_loop
async def test_a_bug_in_what_follows_an_answer_holds_up_no_transaction(caplog: pytest.LogCaptureFixture) -> None:
    place = Place(1, 1)
    bugs = [KeyError("bug")]

    def marked(partitions: Sequence[TopicPartition]) -> None:
        if bugs:
            raise bugs.pop()
        place.marked.extend(partitions)

    place.sender.send(place.work(A).replace(marked=marked))
    place.sender.send(place.work(B))
    await place.all_marked(A, B)
    assert "KeyError: 'bug'" in caplog.text
