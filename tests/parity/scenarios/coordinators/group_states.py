"""Every API of a group in every state of a group: from strangers first, then from a member."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import product
from typing import NamedTuple

from protocol.messages.group_admin import DeleteGroupsRequest
from protocol.messages.groups import HeartbeatRequest
from protocol.topic_partition import TopicPartition
from tests.kit.transactions.requests import commit_offsets
from tests.parity.scenarios.group_offsets import commit, delete_offsets, fetch_offsets
from tests.parity.scenarios.groups import (
    describe,
    heartbeat,
    join,
    join_request,
    leave,
    list_groups,
    member,
    stable_group,
    static_group,
    sync,
)
from tests.parity.subject import Subject, scenario_for_each
from tests.parity.transactional_producer import Producer, coordinated


class Member(NamedTuple):
    """A client that sends requests about a group, and may be a member."""

    group: str
    id: str
    generation: int
    instance: str | None = None


State = Callable[[Subject], AbstractContextManager[Member]]


@contextlib.contextmanager
def unknown(b: Subject) -> Iterator[Member]:
    yield Member(b.coordinator(b.name("g")), "nobody", 1)


@contextlib.contextmanager
def offsets_only(b: Subject) -> Iterator[Member]:
    group = b.coordinator(b.name("g"))
    commit(b, group, b.topic(), 5)
    yield Member(group, "nobody", 1)


@contextlib.contextmanager
def pending(b: Subject) -> Iterator[Member]:
    """A member id was assigned, but never used to join."""
    group = b.coordinator(b.name("g"))
    yield Member(group, member(b, group), 0)


@contextlib.contextmanager
def completing_rebalance(b: Subject) -> Iterator[Member]:
    group = b.coordinator(b.name("g"))
    joined = b.quietly(join_request(group, member(b, group)), 9)
    yield Member(group, joined.member_id, joined.generation_id)


@contextlib.contextmanager
def stable(b: Subject) -> Iterator[Member]:
    yield Member(*stable_group(b))


@contextlib.contextmanager
def preparing_rebalance(b: Subject) -> Iterator[Member]:
    """A second member waits for the first one to rejoin."""
    group, first, generation = stable_group(b)
    with b.another() as other:
        other.send(join_request(group, member(b, group, other)), 9)
        beat = HeartbeatRequest(group_id=group, generation_id=generation, member_id=first)
        b.until(lambda: b.quietly(beat, 4).error_code)
        yield Member(group, first, generation)


@contextlib.contextmanager
def static(b: Subject) -> Iterator[Member]:
    yield Member(*static_group(b), "one")


@contextlib.contextmanager
def static_replaced(b: Subject) -> Iterator[Member]:
    """The member was replaced by another one with its instance id."""
    group, member_id, generation = static_group(b)
    b.quietly(join_request(group, instance="one"), 9)
    yield Member(group, member_id, generation, "one")


@contextlib.contextmanager
def empty(b: Subject) -> Iterator[Member]:
    group, member_id, generation = stable_group(b)
    leave(b, group, (member_id, None))
    yield Member(group, member_id, generation)


@contextlib.contextmanager
def deleted(b: Subject) -> Iterator[Member]:
    with empty(b) as was:
        b.ask(DeleteGroupsRequest(groups_names=[was.group]), 2)
        yield was


STATES: tuple[State, ...] = (
    unknown,
    offsets_only,
    pending,
    completing_rebalance,
    stable,
    preparing_rebalance,
    static,
    static_replaced,
    empty,
    deleted,
)


def identities(who: Member) -> Iterator[Member]:
    """Identities similar to `who`, and finally `who`."""
    yield who._replace(id="nobody")
    yield who._replace(id="")
    yield who._replace(instance="nobody")
    yield who._replace(instance=None)
    yield who._replace(generation=-1)
    yield who._replace(generation=who.generation - 1)
    yield who._replace(generation=who.generation + 1)
    yield who


def joins(b: Subject, who: Member) -> None:
    options = ({"protocol_type": "connect"}, {"protocols": (("other", b""),)}, {"protocols": ()}, {"protocol_type": ""})
    for refused in options:
        join(b, who.group, who.id, instance=who.instance, **refused)
        join(b, who.group, **refused)
    for version in (0, 3, 5, 9):
        join(b, who.group, "nobody", version=version)
    join(b, who.group, "nobody", instance="one")
    join(b, who.group, who.id, instance="nobody")
    join(b, who.group, who.id, instance=who.instance)


def syncs(b: Subject, who: Member) -> None:
    for other in ({"protocol_type": "connect"}, {"protocol_name": "other"}):
        sync(b, who.group, who.generation, who.id, group_instance_id=who.instance, **other)
    for each in identities(who):
        sync(b, each.group, each.generation, each.id, {each.id: b"mine"}, group_instance_id=each.instance)
    describe(b, who.group)


def heartbeats(b: Subject, who: Member) -> None:
    for each in identities(who):
        heartbeat(b, each.group, each.generation, each.id, group_instance_id=each.instance)


def leaves(b: Subject, who: Member) -> None:
    for each in (who._replace(id="nobody"), who._replace(id=""), who._replace(instance="nobody")):
        leave(b, who.group, (each.id, each.instance))
    leave(b, who.group, ("nobody", None), version=1)
    leave(b, who.group)
    leave(b, who.group, (who.id, who.instance), (who.id, who.instance))
    describe(b, who.group)


def commits(b: Subject, who: Member) -> None:
    topic = b.topic("committed")
    for offset, each in enumerate(identities(who)):
        commit(b, each.group, topic, offset, generation=each.generation, member_id=each.id,
               group_instance_id=each.instance)  # fmt: skip
    commit(b, who.group, topic, 10)
    commit(b, who.group, topic, 11, version=1)
    fetch_offsets(b, who.group, (topic, [0]))


def fetches_of_offsets(b: Subject, who: Member) -> None:
    topic = b.topic("fetched")
    for version in (1, 5, 7, 9):
        fetch_offsets(b, who.group, (topic, [0, 5]), (b.name("nope"), [0]), version=version)
    for version in (2, 7, 9):
        fetch_offsets(b, who.group, everything=True, version=version)
    fetch_offsets(b, who.group, (topic, [0]), require_stable=True)
    fetch_offsets(b, who.group)


def transactional_commits(b: Subject, who: Member) -> None:
    topic, producer = b.topic("committed"), Producer(b, coordinated(b)).begin()
    producer.add_offsets(who.group)
    for offset, each in enumerate((*identities(who), Member(who.group, "", -1))):
        request = commit_offsets(*producer.identity, who.group, TopicPartition(topic, 0), offset)
        request.member_id, request.generation_id, request.group_instance_id = each.id, each.generation, each.instance
        b.ask(request, 4)
    producer.end(commit=True)
    producer.settle()


def deletions_of_offsets(b: Subject, who: Member) -> None:
    topic = b.topic("committed")
    commit(b, who.group, topic, 5, generation=who.generation, member_id=who.id, group_instance_id=who.instance)
    delete_offsets(b, who.group, (topic, [0, 5]), (b.name("nope"), [0]), ("", [0]))
    delete_offsets(b, who.group)
    fetch_offsets(b, who.group, (topic, [0]))


def descriptions(b: Subject, who: Member) -> None:
    for version in (0, 3, 4, 5):
        describe(b, who.group, who.group, version=version)
    for states in (["Empty"], ["PreparingRebalance"], ["completingrebalance"], ["Stable", "Dead"]):
        list_groups(b, who.group, states_filter=states)
    list_groups(b, who.group, version=0)


def deletions(b: Subject, who: Member) -> None:
    b.ask(DeleteGroupsRequest(groups_names=[who.group, b.name("nope"), who.group]), 2)
    describe(b, who.group)
    leave(b, who.group, (who.id, who.instance))
    b.ask(DeleteGroupsRequest(groups_names=[who.group]), 0)
    list_groups(b, who.group)


ASKED = (
    joins,
    syncs,
    heartbeats,
    leaves,
    commits,
    fetches_of_offsets,
    transactional_commits,
    deletions_of_offsets,
    descriptions,
    deletions,
)


@scenario_for_each({f"{ask.__name__}.{state.__name__}": (ask, state) for ask, state in product(ASKED, STATES)})
def in_each_state(b: Subject, row: tuple[Callable[[Subject, Member], None], State]) -> None:
    ask, state = row
    with state(b) as who:
        ask(b, who)
