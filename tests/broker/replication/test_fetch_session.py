"""Incremental fetch sessions (KIP-227): what is always included, what only after a change, and what is refused."""

from collections.abc import Callable

from broker.replication.fetch_session import (
    FINAL_EPOCH,
    MOST_ADDED,
    PARTITION_BYTES,
    ErrorFetchContext,
    FetchContext,
    FetchSessionCache,
    PartitionResult,
)
from environment.sliced import never, run_to_end
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.uuids import Uuid
from tests.kit.environment import SeededRandom, uuid_of

ID = uuid_of(7)
NAMES = {ID: "t"}


class Time:
    """A clock that tests move."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def cache_of(slots: int = 10) -> tuple[FetchSessionCache, Time]:
    time = Time()
    return FetchSessionCache(slots, SeededRandom(), time), time


def request(
    session_id: int, epoch: int, *partitions: int, offset: int = 0, forget: tuple[int, ...] = ()
) -> FetchRequest:
    topics = []
    if partitions:
        asked = [
            FetchRequest.FetchPartition(partition=p, fetch_offset=offset, partition_max_bytes=1000) for p in partitions
        ]
        topics = [FetchRequest.FetchTopic(topic="t", partitions=asked)]
    forgotten = [FetchRequest.ForgottenTopic(topic="t", partitions=list(forget))] if forget else []
    return FetchRequest(
        max_wait_ms=0, min_bytes=1, session_id=session_id, session_epoch=epoch, topics=topics,
        forgotten_topics_data=forgotten,
    )  # fmt: skip


def data(partition: int, high_watermark: int, records: bytes = b"", error: int = 0) -> FetchResponse.PartitionData:
    return FetchResponse.PartitionData(
        partition_index=partition, error_code=error, high_watermark=high_watermark, log_start_offset=0, records=records
    )


def opened(
    cache: FetchSessionCache, asked: FetchRequest, version: int, resolve: Callable[[Uuid], str | None]
) -> FetchContext:
    """The context of a request, opened in one go."""
    return run_to_end(cache.open(asked, version, resolve, never))


def answer(context: FetchContext, **changes: FetchResponse.PartitionData) -> tuple[int, list[int]]:
    """(session id, partitions in the response) when partition N has high watermark 10, except for the given `pN`."""
    results: list[PartitionResult] = [
        (p, changes.get(f"p{p.partition}", data(p.partition, 10))) for p in context.partitions
    ]
    response = context.respond(results)
    return response.session_id, [p.partition_index for topic in response.responses for p in topic.partitions]


def test_a_session_tells_everything_once_and_then_only_changes() -> None:
    cache, _ = cache_of()
    session, told = answer(opened(cache, request(0, 0, 0, 1, 2), 12, NAMES.get))
    assert session != 0
    assert told == [0, 1, 2]
    assert answer(opened(cache, request(session, 1), 12, NAMES.get)) == (session, [])
    assert answer(opened(cache, request(session, 2), 12, NAMES.get), p1=data(1, 11)) == (session, [1])
    eleven = data(1, 11)
    # An error is repeated in each response, and its end is reported too.
    assert answer(opened(cache, request(session, 3), 12, NAMES.get), p1=eleven, p2=data(2, 10, error=6)) == (
        session,
        [2],
    )
    assert answer(opened(cache, request(session, 4), 12, NAMES.get), p1=eleven, p2=data(2, 10, error=6)) == (
        session,
        [2],
    )
    assert answer(opened(cache, request(session, 5), 12, NAMES.get), p1=eleven) == (session, [2])


def test_a_reader_that_goes_back_is_told_all_once_more() -> None:
    """A follower that was asked to truncate has not applied the high watermark of that answer."""
    cache, _ = cache_of()
    session, _ = answer(opened(cache, request(0, 0, 0, 1, offset=5), 12, NAMES.get))
    assert answer(opened(cache, request(session, 1, 0, offset=6), 12, NAMES.get)) == (session, [])
    assert answer(opened(cache, request(session, 2, 0, offset=3), 12, NAMES.get)) == (session, [0])
    assert answer(opened(cache, request(session, 3, 0, offset=3), 12, NAMES.get)) == (session, [])


def test_a_follower_that_truncates_is_told_all_once_more() -> None:
    """It may return to its old position, if it only drops an epoch without records."""
    cache, _ = cache_of()
    session, _ = answer(opened(cache, request(0, 0, 0, 1, offset=5), 12, NAMES.get))
    diverging = data(0, 10)
    diverging.diverging_epoch = FetchResponse.EpochEndOffset(epoch=1, end_offset=5)
    assert answer(opened(cache, request(session, 1), 12, NAMES.get), p0=diverging) == (session, [0])
    assert answer(opened(cache, request(session, 2, 0, offset=5), 12, NAMES.get)) == (session, [0])
    assert answer(opened(cache, request(session, 3), 12, NAMES.get)) == (session, [])


def test_partitions_join_change_and_leave_a_session() -> None:
    cache, _ = cache_of()
    session, _ = answer(opened(cache, request(0, 0, 0, 1), 12, NAMES.get))
    context = opened(cache, request(session, 1, 2, offset=5, forget=(0,)), 12, NAMES.get)
    assert [(p.partition, p.fetch_offset) for p in context.partitions] == [(1, 0), (2, 5)]
    assert answer(context) == (session, [2])
    context = opened(cache, request(session, 2, 1, offset=9), 12, NAMES.get)
    assert [(p.partition, p.fetch_offset) for p in context.partitions] == [(1, 9), (2, 5)]


def test_who_got_records_goes_to_the_back() -> None:
    cache, _ = cache_of()
    session, _ = answer(opened(cache, request(0, 0, 0, 1, 2), 12, NAMES.get))
    answer(opened(cache, request(session, 1), 12, NAMES.get), p0=data(0, 10, b"x" * 10))
    context = opened(cache, request(session, 2), 12, NAMES.get)
    assert [p.partition for p in context.partitions] == [1, 2, 0]


def test_wrong_sessions_are_refused_with_their_codes() -> None:
    cache, _ = cache_of()
    session, _ = answer(opened(cache, request(0, 0, 0), 12, NAMES.get))

    def refusal(asked: FetchRequest, version: int) -> int:
        context = opened(cache, asked, version, NAMES.get)
        assert isinstance(context, ErrorFetchContext)
        return context.respond(()).error_code

    assert refusal(request(session + 1, 1), 12) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refusal(request(session, 7), 12) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert refusal(request(session, 1), 13) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_final_epoch_closes_the_session() -> None:
    cache, _ = cache_of()
    session, _ = answer(opened(cache, request(0, 0, 0), 12, NAMES.get))
    assert len(cache) == 1
    assert answer(opened(cache, request(session, -1, 0), 12, NAMES.get)) == (0, [0])
    assert len(cache) == 0


def test_a_full_cache_gives_no_session_until_the_oldest_has_idled() -> None:
    cache, time = cache_of(slots=1)
    first, _ = answer(opened(cache, request(0, 0, 0), 12, NAMES.get))
    assert answer(opened(cache, request(0, 0, 1), 12, NAMES.get))[0] == 0
    time.now_s = 121
    second, _ = answer(opened(cache, request(0, 0, 1), 12, NAMES.get))
    assert second not in (0, first)
    assert isinstance(opened(cache, request(first, 1), 12, NAMES.get), ErrorFetchContext)


def test_sessions_of_consumers_have_a_bound_in_bytes() -> None:
    time = Time()
    cache = FetchSessionCache(100, SeededRandom(), time, most_bytes=5 * PARTITION_BYTES)
    first, _ = answer(opened(cache, request(0, 0, 0, 1, 2), 12, NAMES.get))
    assert first != 0
    assert answer(opened(cache, request(0, 0, 3, 4), 12, NAMES.get))[0] == 0, "the names of topics count, too"
    follower = request(0, 0, *range(100))
    follower.replica_id = 2
    assert answer(opened(cache, follower, 12, NAMES.get))[0] != 0
    assert not isinstance(opened(cache, request(first, 1, 1, 3, offset=5), 12, NAMES.get), ErrorFetchContext)
    grown = opened(cache, request(first, 2, 4, 5), 12, NAMES.get)
    assert isinstance(grown, ErrorFetchContext)
    assert grown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    second, _ = answer(opened(cache, request(0, 0, 1, 2, 3), 12, NAMES.get))
    time.now_s = 121
    third, _ = answer(opened(cache, request(0, 0, 1, 2), 12, NAMES.get))
    assert 0 not in (second, third)
    assert isinstance(opened(cache, request(second, 1), 12, NAMES.get), ErrorFetchContext)
    time.now_s = 300
    assert answer(opened(cache, request(0, 0, *range(10)), 12, NAMES.get))[0] == 0
    assert not isinstance(opened(cache, request(third, 1), 12, NAMES.get), ErrorFetchContext), "for one that never fits"


def test_bytes_are_made_room_for_by_consumers_alone() -> None:
    """Ending a follower's session would not help: followers' sessions do not count towards the limit."""
    time = Time()
    cache = FetchSessionCache(100, SeededRandom(), time, most_bytes=3 * PARTITION_BYTES)
    asked = request(0, 0, 0)
    asked.replica_id = 2
    follower, _ = answer(opened(cache, asked, 12, NAMES.get))
    old, _ = answer(opened(cache, request(0, 0, 0, 1), 12, NAMES.get))
    time.now_s = 121
    new, _ = answer(opened(cache, request(0, 0, 2, 3), 12, NAMES.get))
    assert 0 not in (follower, old, new)
    assert isinstance(opened(cache, request(old, 1), 12, NAMES.get), ErrorFetchContext)
    assert not isinstance(opened(cache, request(follower, 1), 12, NAMES.get), ErrorFetchContext)


def test_a_session_that_ends_while_a_large_request_is_read_is_not_changed() -> None:
    cache, _ = cache_of()
    session, _ = answer(opened(cache, request(0, 0, 0, 1), 12, NAMES.get))
    opening = cache.open(request(session, 1, 2, 3, 4), 12, NAMES.get, lambda: True)
    next(opening)
    opened(cache, request(session, FINAL_EPOCH), 12, NAMES.get)
    assert isinstance(run_to_end(opening), ErrorFetchContext)
    assert not len(cache)


def test_bytes_of_sessions_that_grow_shrink_and_end_are_counted() -> None:
    cache = FetchSessionCache(100, SeededRandom(), Time(), most_bytes=4 * PARTITION_BYTES)
    for _ in range(3):
        session, _ = answer(opened(cache, request(0, 0, 0, 1), 12, NAMES.get))
        assert session != 0
        assert answer(opened(cache, request(0, 0, 2, 3), 12, NAMES.get))[0] == 0
        opened(cache, request(session, 1, 2, forget=(0,)), 12, NAMES.get)
        opened(cache, request(session, 2, 3), 12, NAMES.get)
        assert answer(opened(cache, request(0, 0, 4), 12, NAMES.get))[0] == 0
        answer(opened(cache, request(session, FINAL_EPOCH), 12, NAMES.get))
        assert not len(cache)


def test_a_large_session_gets_no_more_partitions() -> None:
    """An incremental request is read in one go: 900,000 partitions would hold the event loop for seconds."""
    cache, _ = cache_of()
    for added in ((MOST_ADDED,), range(1, 2 * MOST_ADDED + 1)):
        session, _ = answer(opened(cache, request(0, 0, *range(MOST_ADDED)), 12, NAMES.get))
        assert not isinstance(opened(cache, request(session, 1, *range(MOST_ADDED)), 12, NAMES.get), ErrorFetchContext)
        assert isinstance(opened(cache, request(session, 2, *added), 12, NAMES.get), ErrorFetchContext)
        assert not len(cache)


def test_a_follower_takes_the_place_of_a_consumer_in_a_full_cache() -> None:
    """Kafka's privileged sessions: followers evict consumers, but never each other."""
    cache, time = cache_of(slots=2)
    follower = request(0, 0, 0)
    follower.replica_id = 2
    first, _ = answer(opened(cache, follower, 12, NAMES.get))
    consumer, _ = answer(opened(cache, request(0, 0, 1), 12, NAMES.get))
    assert answer(opened(cache, request(0, 0, 2), 12, NAMES.get))[0] == 0
    second, _ = answer(opened(cache, follower, 12, NAMES.get))
    assert 0 not in (first, second)
    assert isinstance(opened(cache, request(consumer, 1), 12, NAMES.get), ErrorFetchContext)
    assert answer(opened(cache, follower, 12, NAMES.get))[0] == 0
    time.now_s = 121
    assert answer(opened(cache, request(0, 0, 2), 12, NAMES.get))[0] != 0


def test_an_unknown_topic_id_stays_in_the_session_and_is_found_when_it_appears() -> None:
    cache, _ = cache_of()
    asked = request(0, 0, 0)
    asked.topics[0].topic, asked.topics[0].topic_id = "", ID
    context = opened(cache, asked, 13, {}.get)
    assert [p.topic for p in context.partitions] == [None]
    session, _ = answer(context, p0=data(0, -1, error=ErrorCode.UNKNOWN_TOPIC_ID))
    context = opened(cache, request(session, 1), 13, NAMES.get)
    assert [p.topic for p in context.partitions] == ["t"]


def test_a_session_without_partitions_ends() -> None:
    cache, _ = cache_of()
    session, _ = answer(opened(cache, request(0, 0, 0), 12, NAMES.get))
    context = opened(cache, request(session, 1, forget=(0,)), 12, NAMES.get)
    assert answer(context) == (0, [])
    assert len(cache) == 0
