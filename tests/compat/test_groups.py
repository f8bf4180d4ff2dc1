"""Consumer groups of real clients: joining, leaving, dying, coming back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat.conftest import NewDriver
from tests.compat.driver_process import (
    CLIENTS,
    Driver,
    Member,
    Record,
    State,
)
from tests.kit.waiting import eventually

PARTITIONS = 4
SHORT_SESSION_MS = 4000
"""Long enough that no live member misses it on a busy machine."""

pytestmark = pytest.mark.parametrize("client", CLIENTS)


@pytest.fixture
def partitions(driver: Driver, topic: str) -> set[str]:
    """Create the topic; returns its partitions in the notation of members."""
    driver.admin("create_topic", topic=topic, partitions=PARTITIONS, configs={})
    return {f"{topic}-{number}" for number in range(PARTITIONS)}


def fill(driver: Driver, topic: str, name: str, count: int = 20) -> set[bytes]:
    """Produce `count` values to every partition; returns them."""
    values = {
        (partition, b"%s %d of %d" % (name.encode(), n, partition)) for partition in range(4) for n in range(count)
    }
    driver.produce(topic, [Record(value, partition=partition) for partition, value in sorted(values)])
    return {value for _, value in values}


def holds(count: int) -> Callable[[State], bool]:
    """Whether a member has this many partitions."""
    return lambda state: len(state.assignment) == count


def values_of(*members: Member) -> set[bytes | None]:
    """The values that all members read together."""
    return {record.value for member in members for record in member.state().records}


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative"])
def test_joining_and_leaving(driver: Driver, topic: str, partitions: set[str], strategy: str) -> None:
    first = driver.join("first", topic, topic, strategy)
    assert set(eventually("all partitions", first.state, holds(4)).assignment) == partitions
    second = driver.join("second", topic, topic, strategy)
    of_second = eventually("half of them for the second", second.state, holds(2))
    of_first = eventually("half of them for the first", first.state, holds(2))
    assert set(of_first.assignment) | set(of_second.assignment) == partitions

    sent = fill(driver, topic, "shared")
    eventually("every record", lambda: values_of(first, second), lambda seen: seen == sent)
    for member, state in ((first, of_first), (second, of_second)):
        assert {f"{topic}-{record.partition}" for record in member.state().records} == set(state.assignment)

    second.leave()
    assert set(eventually("all of them again", first.state, holds(4)).assignment) == partitions
    first.leave()


def test_a_cooperative_rebalance_moves_only_what_it_must(
    driver: Driver, new_driver: NewDriver, client: str, topic: str, partitions: set[str]
) -> None:
    driver = new_driver(client)
    first = driver.join("first", topic, topic, "cooperative")
    eventually("all partitions", first.state, holds(4))
    second = driver.join("second", topic, topic, "cooperative")
    moved = set(eventually("half of them for the second", second.state, holds(2)).assignment)
    kept = set(eventually("half of them for the first", first.state, holds(2)).assignment)
    revoked = {partition for kind, those in first.state().events if kind == "revoked" for partition in those}
    assert (revoked, kept) == (moved, partitions - moved)
    second.leave()
    first.leave()


def test_a_killed_member_is_missed(
    driver: Driver, new_driver: NewDriver, client: str, topic: str, partitions: set[str]
) -> None:
    survivor = driver.join("survivor", topic, topic, session_timeout_ms=SHORT_SESSION_MS)
    mortal_process = new_driver(client)
    mortal = mortal_process.join("mortal", topic, topic, session_timeout_ms=SHORT_SESSION_MS)
    eventually("two members", mortal.state, holds(2))
    eventually("two members", survivor.state, holds(2))
    mortal_process.kill()
    sent = fill(driver, topic, "after the kill")
    assert set(eventually("the dead one's partitions", survivor.state, holds(4)).assignment) == partitions
    eventually("every record", lambda: values_of(survivor), lambda seen: seen == sent)
    survivor.leave()


def test_a_static_member_comes_back_unnoticed(driver: Driver, topic: str, partitions: set[str]) -> None:
    first = driver.join("first", topic, topic, instance="one")
    second = driver.join("second", topic, topic, instance="two")
    eventually("half of them for the first", first.state, holds(2))
    before = set(eventually("half of them for the second", second.state, holds(2)).assignment)
    events = len(first.state().events)
    second.leave()
    again = driver.join("again", topic, topic, instance="two")
    assert set(eventually("what it had", again.state, holds(2)).assignment) == before
    sent = fill(driver, topic, "static")
    eventually("every record", lambda: values_of(first, again), lambda seen: seen == sent)
    assert len(first.state().events) == events
    again.leave()
    first.leave()


def test_commit_and_resume(driver: Driver, topic: str, partitions: set[str]) -> None:
    before = fill(driver, topic, "before")
    member = driver.join("member", topic, topic)
    eventually("every record", lambda: values_of(member), lambda seen: seen == before)
    member.commit()
    assert driver.admin("committed", group=topic) == dict.fromkeys(sorted(partitions), 20)
    member.leave()
    after = fill(driver, topic, "after")
    resumed = driver.join("resumed", topic, topic)
    eventually("the new records alone", lambda: values_of(resumed), lambda seen: seen == after)
    # Uncommitted records are read again.
    resumed.leave()
    repeated = driver.join("repeated", topic, topic)
    eventually("the new records again", lambda: values_of(repeated), lambda seen: seen == after)
    repeated.leave()


def test_new_partitions_are_found(driver: Driver, topic: str, partitions: set[str]) -> None:
    member = driver.join("member", topic, topic)
    eventually("all partitions", member.state, holds(4))
    driver.admin("create_partitions", topic=topic, count=6)
    eventually("the new ones as well", member.state, holds(6))
    member.leave()
