"""Quotas in scenarios: set for the duration of a block, and tested by clients with new names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

from protocol.messages.quotas import AlterClientQuotasRequest
from protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from protocol.wire.schema import Request
from tests.kit.wire_requests import fetch
from tests.parity.subject import Subject, batch, produce_request

Parts = dict[str, str | None]
Changes = dict[str, float | None]

USER: Final = "ANONYMOUS"
WRITTEN: Final = "producer_byte_rate"
READ: Final = "consumer_byte_rate"
CHANGED: Final = "controller_mutation_rate"
TIME: Final = "request_percentage"
MANY: Final = 1e15
"""An unlimited quota in practice."""
WINDOW_S: Final = 10
"""A client may be ahead of its quota by this much: the whole samples of quota.window.num."""
LONG_NAME: Final = "n" * 200
"""The name of a missing topic. At one byte per second, this long answer gives a longer throttle time than others."""
PROBE_MS: Final = 150_000
_numbers = count()


def alter_request(*entries: tuple[Parts, Changes], validate_only: bool = False) -> AlterClientQuotasRequest:
    """AlterClientQuotas; a value of None removes a quota."""
    entity, change = AlterClientQuotasRequest.EntityData, AlterClientQuotasRequest.OpData
    return AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequest.EntryData(
                entity=[entity(entity_type=kind, entity_name=name) for kind, name in parts.items()],
                ops=[change(key=key, value=value or 0.0, remove=value is None) for key, value in changes.items()],
            )
            for parts, changes in entries
        ],
        validate_only=validate_only,
    )


@contextmanager
def quotas(b: Subject, *entries: tuple[Parts, Changes]) -> Iterator[None]:
    """Set quotas, which apply from the start of the block to its end. The scenario's own client is not limited."""
    own: Parts = {"user": USER, "client-id": "parity"}
    free: Changes = dict.fromkeys((WRITTEN, READ, CHANGED, TIME), MANY)
    try:
        change(b, (own, free), *entries)
        yield
    finally:
        change(b, *((parts, dict.fromkeys(changes)) for parts, changes in (*entries, (own, free))))


def change(b: Subject, *entries: tuple[Parts, Changes]) -> None:
    """Change quotas, and wait until they apply: brokers apply changes in order, and a probe's quota comes last."""
    name = f"probe-{next(_numbers)}"
    probe: Parts = {"user": USER, "client-id": name}
    answer = b.quietly(alter_request(*entries, (probe, {READ: 1.0, TIME: MANY})), 1)
    assert not any(entry.error_code for entry in answer.entries), answer
    b.until(lambda: throttle_ms(b, name, fetch(LONG_NAME, 0), 12) > PROBE_MS)
    b.quietly(alter_request((probe, {READ: None, TIME: None})), 1)


def throttle_ms(b: Subject, client_id: str | None, request: Request, version: int = 9) -> int:
    """The throttle time that a client gets on a new connection."""
    with b.another(client_id) as connection:
        response: Any = connection.ask(request, version)
    return int(response.throttle_time_ms)


def written(topic: str, size: int, *, acks: int = -1) -> Request:
    """A request about 100 bytes larger than `size`."""
    return produce_request(topic, batch(b"x" * size), acks=acks)


def new_topics(*names: str, partitions: int = 1, validate_only: bool = False) -> CreateTopicsRequest:
    """Creation of topics."""
    topics = [
        CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        for name in names
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=30_000, validate_only=validate_only)


def old_topics(*names: str) -> DeleteTopicsRequest:
    """Deletion of topics, before version 6."""
    return DeleteTopicsRequest(topic_names=list(names), timeout_ms=30_000)
