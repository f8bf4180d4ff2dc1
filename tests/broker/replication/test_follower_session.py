"""Both sides of a follower's fetch session (KIP-227): the leader always reads the positions that the follower wants."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.replication.fetch_session import ErrorFetchContext, FetchSessionCache, PartitionResult
from broker.replication.follower_session import VERSION_WITH_IDS, VERSION_WITH_NAMES, FollowerSession
from cluster.replication.follower import FetchPosition
from environment.sliced import never, run_to_end
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.topic_partition import TopicPartition
from tests.kit.environment import SeededRandom, uuid_of

IDS = {"t": uuid_of(7), "u": uuid_of(8), "nameless": None}
NAMES = {uuid_of(7): "t", uuid_of(8): "u"}


def position(offset: int, epoch: int = 1) -> FetchPosition:
    return FetchPosition(epoch, offset, epoch, 0)


class Both:
    """A follower and its leader."""

    def __init__(self) -> None:
        self.follower = FollowerSession(1000)
        self.leader = FetchSessionCache(10, SeededRandom(), lambda: 0.0)

    def request(self) -> tuple[FetchRequest, int]:
        """The next request, as received."""
        request, version = self.follower.request()
        return FetchRequest.decode(memoryview(request.to_bytes(version)), version), version

    def serve(self, request: FetchRequest, version: int, high_watermark: int) -> FetchResponse:
        """The leader's answer; the request must match the follower's positions."""
        context = run_to_end(self.leader.open(request, version, NAMES.get, never))
        if not isinstance(context, ErrorFetchContext):
            wanted = {
                TopicPartition(each.topic or "", each.partition): FetchPosition(
                    each.current_leader_epoch, each.fetch_offset, each.last_fetched_epoch, each.log_start_offset
                )
                for each in context.partitions
            }
            assert wanted == self.follower.positions
        results: list[PartitionResult] = [
            (
                each,
                FetchResponse.PartitionData(
                    partition_index=each.partition,
                    error_code=0,
                    high_watermark=high_watermark,
                    log_start_offset=0,
                    records=b"",
                ),
            )
            for each in context.partitions
        ]
        response = context.respond(results)
        return FetchResponse.decode(memoryview(response.to_bytes(version)), version)

    def fetch(self, high_watermark: int = 0) -> list[TopicPartition]:
        """One fetch; returns the partitions in the answer."""
        request, version = self.request()
        return [name for name, _, _ in self.follower.accept(self.serve(request, version, high_watermark))]


@settings(max_examples=200)
@given(st.data())
def test_the_leader_reads_what_the_follower_wants(data: st.DataObject) -> None:
    both = Both()
    partitions = [TopicPartition(topic, number) for topic in IDS for number in (0, 1)]
    for high_watermark in range(data.draw(st.integers(1, 12))):
        for _ in range(data.draw(st.integers(0, 4))):
            name = data.draw(st.sampled_from(partitions))
            if data.draw(st.booleans()):
                both.follower.ask(name, IDS[name.topic], position(data.draw(st.integers(0, 3))))
            else:
                both.follower.drop(name)
        if not both.follower.positions:
            continue
        match data.draw(st.sampled_from(["answered", "lost", "forgotten"])):
            case "answered":
                both.fetch(high_watermark)
            case "lost":
                request, version = both.request()
                both.serve(request, version, high_watermark)
                both.follower.reset()
            case "forgotten":
                both.leader._sessions.clear()
    both.follower.ask(partitions[0], IDS["t"], position(9))
    for high_watermark in (98, 99):
        both.fetch(high_watermark)
    assert set(both.fetch(100)) == set(both.follower.positions)
    assert both.fetch(100) == []


def test_topics_without_an_id_have_everything_asked_for_by_name() -> None:
    both = Both()
    both.follower.ask(TopicPartition("t", 0), IDS["t"], position(0))
    assert both.request()[1] == VERSION_WITH_IDS
    both.follower.reset()
    both.follower.ask(TopicPartition("nameless", 0), None, position(0))
    assert both.request()[1] == VERSION_WITH_NAMES
    both.follower.drop(TopicPartition("nameless", 0))
    assert both.request()[1] == VERSION_WITH_IDS


def test_an_answer_belongs_to_what_was_asked_and_not_to_what_is_wanted_since() -> None:
    """M3: the partition was removed and added again, in another epoch, while the fetch was in flight."""
    both = Both()
    name, added = TopicPartition("t", 0), TopicPartition("t", 1)
    both.follower.ask(name, IDS["t"], position(5, epoch=1))
    request, version = both.request()
    both.follower.drop(name)
    both.follower.ask(name, IDS["t"], position(5, epoch=2))
    both.follower.ask(added, IDS["t"], position(0))
    response = FetchResponse(
        session_id=1,
        responses=[
            FetchResponse.FetchableTopicResponse(
                topic_id=IDS["t"],
                partitions=[
                    FetchResponse.PartitionData(partition_index=number, error_code=0, high_watermark=1, records=b"")
                    for number in (0, 1)
                ],
            )
        ],
    )
    answers = [(tp, asked) for tp, asked, _ in both.follower.accept(response)]
    assert answers == [(name, position(5, epoch=1))]
    assert request.topics[0].partitions[0].current_leader_epoch == 1
    assert version == VERSION_WITH_IDS


def test_a_session_that_the_leader_refuses_begins_anew() -> None:
    both = Both()
    both.follower.ask(TopicPartition("t", 0), IDS["t"], position(0))
    both.fetch()
    for error in (ErrorCode.INVALID_FETCH_SESSION_EPOCH, ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
        both.request()
        assert list(both.follower.accept(FetchResponse(error_code=error, session_id=0, responses=[]))) == []
        request, _ = both.request()
        assert (request.session_epoch, len(request.topics)) == (0, 1)
        both.follower.reset()
