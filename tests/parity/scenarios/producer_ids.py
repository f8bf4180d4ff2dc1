"""InitProducerId without a transactional id."""

from __future__ import annotations

from protocol.messages.producer_ids import InitProducerIdRequest
from tests.parity.subject import Subject, scenario


def init(
    b: Subject,
    *,
    transactional_id: str | None = None,
    timeout_ms: int = 60_000,
    producer_id: int = -1,
    epoch: int = -1,
    version: int = 5,
) -> None:
    """InitProducerId."""
    if transactional_id is None:
        b.producer_id()  # after this, ids are available
    b.ask(
        InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        ),
        version,
    )


@scenario
def fresh_ids_in_every_version(b: Subject) -> None:
    for version in range(6):
        init(b, version=version)


@scenario
def ids_differ(b: Subject) -> None:
    ids = [b.producer_id() for _ in range(5)]
    b.note("all different", len(set(ids)) == len(ids))


@scenario
def timeout_means_nothing_without_a_transaction(b: Subject) -> None:
    for timeout_ms in (0, -1, 2**31 - 1):
        init(b, timeout_ms=timeout_ms)


@scenario
def known_id_and_epoch(b: Subject) -> None:
    init(b, producer_id=5, epoch=3)


@scenario
def half_an_identity(b: Subject) -> None:
    init(b, producer_id=5)
    init(b, epoch=3)
    init(b, producer_id=5, version=3)


@scenario
def empty_transactional_id(b: Subject) -> None:
    init(b, transactional_id="")
