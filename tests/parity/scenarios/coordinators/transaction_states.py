"""Every API of a transaction in every state of a transactional id: from strangers first, then from its producer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

from protocol.messages.transactions import AddPartitionsToTxnRequest
from protocol.topic_partition import TopicPartition
from tests.kit.transactions.requests import (
    add_offsets,
    add_partitions,
    commit_offsets,
    end,
    fetch_offset,
    init,
    produce_in_transaction,
    verify,
    write_marker,
)
from tests.parity.scenarios.producers import describe as describe_producers
from tests.parity.subject import Subject, scenario_for_each
from tests.parity.transactional_producer import Producer, coordinated, read

FOREIGN = 1_000_000
"""Beyond any producer id that was allocated."""


class Session(NamedTuple):
    """A producer, and the partition that its transactions write to."""

    producer: Producer
    at: TopicPartition


State = Callable[[Subject], Session]


def unknown(b: Subject) -> Session:
    producer = Producer(b, coordinated(b))
    producer.producer_id, producer.epoch = b.producer_id()
    return Session(producer, TopicPartition(b.topic(), 0))


def no_transaction(b: Subject) -> Session:
    """The second session of the producer, so that an epoch before it is a valid one."""
    return Session(Producer(b, coordinated(b)).begin().begin(), TopicPartition(b.topic(), 0))


def begun(b: Subject) -> Session:
    producer, at = no_transaction(b)
    b.quietly(add_partitions(*producer.identity, at), 3)
    return Session(producer, at)


def written(b: Subject) -> Session:
    producer, at = begun(b)
    b.quietly(produce_in_transaction(*producer.identity, 0, [b"1"], at), 11)
    return Session(producer, at)


def offsets_committed(b: Subject) -> Session:
    producer, at = no_transaction(b)
    group = b.coordinator(b.name("g"))
    b.quietly(add_offsets(*producer.identity, group), 4)
    b.quietly(commit_offsets(*producer.identity, group, at, 3), 4)
    return Session(producer, at)


def _ended(b: Subject, *, commit: bool) -> Session:
    producer, at = written(b)
    b.quietly(end(*producer.identity, commit=commit), 4)
    producer.settle()
    return Session(producer, at)


def committed(b: Subject) -> Session:
    return _ended(b, commit=True)


def aborted(b: Subject) -> Session:
    return _ended(b, commit=False)


def fenced(b: Subject) -> Session:
    """A successor has aborted the transaction and has not begun another."""
    session = written(b)
    Producer(b, session.producer.id).begin()
    return session


def timed_out(b: Subject) -> Session:
    """The coordinator has aborted the transaction."""
    producer, at = no_transaction(b)
    answer = b.quietly(init(producer.id, timeout_ms=1), 5)
    producer.producer_id, producer.epoch = answer.producer_id, answer.producer_epoch
    b.quietly(add_partitions(*producer.identity, at), 3)
    b.until(lambda: producer.described().transaction_state == "CompleteAbort")
    return Session(producer, at)


STATES: tuple[State, ...] = (
    unknown,
    no_transaction,
    begun,
    written,
    offsets_committed,
    committed,
    aborted,
    fenced,
    timed_out,
)
Identity = tuple[str, int, int]


def identities(b: Subject, producer: Producer) -> Iterator[Identity]:
    """Identities similar to that of `producer`, and finally its own."""
    name, producer_id, epoch = producer.identity
    yield b.name("nobody"), producer_id, epoch
    yield "", producer_id, epoch
    yield name, producer_id + FOREIGN, epoch
    yield name, -1, epoch
    yield name, producer_id, epoch - 1
    yield name, producer_id, epoch + 1
    yield producer.identity


def begins_again(b: Subject, session: Session) -> None:
    producer, _ = session
    for producer_id, epoch in ((0, 1), (1, 0), (0, 0)):
        other = Producer(b, producer.id)
        other.producer_id, other.epoch = producer.producer_id + producer_id * FOREIGN, producer.epoch + epoch
        for version in (3, 5):
            other.init(version, goes_on=True)
            producer.await_markers()
    producer.begin().describe()


def adds_partitions(b: Subject, session: Session) -> None:
    producer, at = session
    for identity in identities(b, producer):
        for version in (1, 3):
            b.note(f"AddPartitionsToTxn v{version}", b.quietly(add_partitions(*identity, at), version))
    producer.add(at, at, at._replace(partition=1))
    producer.describe()


def batched(*requests: AddPartitionsToTxnRequest) -> AddPartitionsToTxnRequest:
    """One request for several transactions (KIP-890)."""
    return AddPartitionsToTxnRequest(transactions=[each for request in requests for each in request.transactions])


def adds_partitions_for_several(b: Subject, session: Session) -> None:
    producer, at = session
    for verifies, version in product((True, False), (4, 5)):
        asked = batched(*(verify(*identity, at) for identity in identities(b, producer)))
        for each in asked.transactions:
            each.verify_only = verifies
        answer = b.quietly(asked, version)
        b.note(f"AddPartitionsToTxn v{version}", answer)
    producer.describe()


def adds_offsets(b: Subject, session: Session) -> None:
    producer, _ = session
    group = b.coordinator(b.name("g"))
    for identity in identities(b, producer):
        for version in (1, 4):
            b.note(f"AddOffsetsToTxn v{version}", b.quietly(add_offsets(*identity, group), version))
    producer.describe()


def commits_offsets(b: Subject, session: Session) -> None:
    producer, at = session
    group = b.coordinator(b.name("g"))
    for offset, identity in enumerate(identities(b, producer)):
        for version in (0, 3, 4):
            b.note(f"TxnOffsetCommit v{version}", b.quietly(commit_offsets(*identity, group, at, offset), version))
    for require_stable in (False, True):
        b.ask(fetch_offset(group, at, require_stable=require_stable), 9)


def _ends(b: Subject, session: Session, *, commit: bool) -> None:
    producer, at = session
    for identity in identities(b, producer):
        b.note("EndTxn v1", b.quietly(end(*identity, commit=commit), 1))
    producer.settle()
    for again in (commit, not commit):
        producer.end(commit=again)
    read(b, at.topic)


def commits(b: Subject, session: Session) -> None:
    _ends(b, session, commit=True)


def aborts(b: Subject, session: Session) -> None:
    _ends(b, session, commit=False)


def produces(b: Subject, session: Session) -> None:
    producer, at = session
    for identity in identities(b, producer):
        if identity[1] == -1:
            continue  # `transactional_producing.nobodys_transactional_batch`
        for sequence, version in ((0, 11), (1, 11), (7, 9), (0, 3)):
            answer = b.quietly(produce_in_transaction(*identity, sequence, [b"v"], at), version)
            b.note(f"Produce v{version}", answer)
    read(b, at.topic)


def produces_without_a_transaction(b: Subject, session: Session) -> None:
    """Idempotent batches of the producer's id, batches without an id, and transactional ones without the transactional
    id.
    """
    producer, at = session
    _, producer_id, epoch = producer.identity
    for sequence, number in ((1, producer_id), (-1, -1)):
        for name in (None, producer.id):
            asked = produce_in_transaction(name, number, epoch, sequence, [b"v"], at, is_transactional=False)
            b.ask(asked, 11)
    b.ask(produce_in_transaction(None, producer_id, epoch, 0, [b"v"], at), 11)
    b.produce(at.topic, b"plain")
    read(b, at.topic)


def marks(b: Subject, session: Session) -> None:
    producer, at = session
    _, producer_id, epoch = producer.identity
    for coordinator_epoch, marked, commit in (
        (-1, -1, True),
        (0, -1, False),
        (0, 0, True),
        (0, 1, False),
        (5, 1, True),
    ):
        asked = write_marker(
            producer_id,
            epoch + marked,
            at,
            at._replace(partition=1),
            coordinator_epoch=coordinator_epoch,
            commit=commit,
        )
        b.note("WriteTxnMarkers", b.quietly(asked, 1))
    b.note("WriteTxnMarkers", b.quietly(write_marker(-1, 0, at), 1))
    read(b, at.topic)


def is_described(b: Subject, session: Session) -> None:
    producer, at = session
    producer.describe()
    describe_producers(b, at.topic, 0, known={producer.producer_id: "producer"})
    read(b, at.topic)


ASKED = (
    begins_again,
    adds_partitions,
    adds_partitions_for_several,
    adds_offsets,
    commits_offsets,
    commits,
    aborts,
    produces,
    produces_without_a_transaction,
    marks,
    is_described,
)


@scenario_for_each({f"{ask.__name__}.{state.__name__}": (ask, state) for ask, state in product(ASKED, STATES)})
def in_each_state(b: Subject, row: tuple[Callable[[Subject, Session], None], State]) -> None:
    ask, state = row
    ask(b, state(b))
