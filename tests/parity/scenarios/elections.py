"""ElectLeaders that elect nothing, and for missing topics."""

from __future__ import annotations

from protocol.messages.reassignments import ElectLeadersRequest
from tests.parity.subject import Subject, scenario

PREFERRED, UNCLEAN, UNKNOWN = 0, 1, 2


def elect(b: Subject, version: int, kind: int, partitions: dict[str, list[int]] | None, timeout_ms: int = 1000) -> None:
    """ElectLeaders."""
    asked = None
    if partitions is not None:
        asked = [ElectLeadersRequest.TopicPartitions(topic=name, partitions=each) for name, each in partitions.items()]
    b.ask(ElectLeadersRequest(election_type=kind, topic_partitions=asked, timeout_ms=timeout_ms), version)


@scenario
def elections_of_leaders_that_are_right(b: Subject) -> None:
    topic = b.topic()
    elect(b, 0, PREFERRED, {topic: [0]})
    for version in (1, 2):
        for kind in (PREFERRED, UNCLEAN, UNKNOWN):
            elect(b, version, kind, {topic: [0]})
            elect(b, version, kind, {b.name("missing"): [0]})
            elect(b, version, kind, None)
            elect(b, version, kind, {})
    for timeout_ms in (0, -1):
        elect(b, 2, PREFERRED, {topic: [0]}, timeout_ms)


@scenario
def elections_of_odd_partitions(b: Subject) -> None:
    topic = b.topic()
    for partitions in ({topic: [7]}, {topic: [-1]}, {"not/a/name": [0]}, {"": [0]}, {topic: [0, 0]}, {topic: []}):
        elect(b, 2, PREFERRED, partitions)
