"""Scenarios that compare a broker with itself: with access control lists and without, with a quota and without.

The figure is the time of the same load with the feature, as a percentage of that without; below, the broker's CPU in
the same form. Requests of one record show the worst-case cost per request; no target is set for them. The loads take
turns (with, without, without, with), so that a drift of the machine favours neither. An authorizer is set at a broker's
start, so a second broker runs without one: a restart between the loads would slow down the next one.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from bench.brokers import Broker
from bench.scenario import Context, Measure, Sample, Scenario
from bench.scenarios import READY_TOPIC, throughput
from bench.wait_loads import PATIENCE_S, few
from protocol.acl_types import AclOperation, AclPermissionType, PatternType, ResourceType
from protocol.messages.quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from protocol.messages.security import CreateAclsRequest, CreateAclsResponse
from protocol.wire.schema import Request, Response
from tests.kit.wire_client import WireClient

ACLS: Final = 10_000
ACLS_AT_ONCE: Final = 500
PREFIXED_EVERY: Final = 10
"""One pattern in this many is a prefix."""
NEVER_REACHED: Final = 1e12
AUTHORIZER: Final = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    # Access that no ACL matches is allowed, for the broker's own requests and those of the preparation.
    "allow.everyone.if.no.acl.found": "true",
}
QUOTAS: Final = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
TURNS: Final = (True, False, False, True) * 4
_CPU: Final = "broker_CPU_percent"

Pick = Callable[[bool], Broker]
"""Returns the broker to load: with the measured feature, or without it."""
Prepare = Callable[[Context, Broker], AbstractContextManager[Pick]]
"""Prepares a running broker; the `Pick` is valid inside the context."""


def compared(records: int, size: int, mode: str, prepare: Prepare) -> Measure:
    """The time of the same load with the feature, as a percentage of that without."""

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        seconds: dict[bool, list[float]] = {True: [], False: []}
        spent: dict[bool, list[float]] = {True: [], False: []}
        with prepare(context, broker) as pick:
            for turn, has_it in enumerate(TURNS):
                loaded = pick(has_it)
                context.load.run(mode, loaded.address, f"{topic}-warm", context.count(records // 5), size, 1)
                before = loaded.cpu_s()
                result = context.load.run(mode, loaded.address, f"{topic}-{turn}", context.count(records), size, 1)
                sample = throughput(result, loaded.cpu_s() - before)
                seconds[has_it].append(1 / sample.value)
                spent[has_it].append(sample.broker_cpu_s or 0)
                context.load.run("delete", loaded.address, f"{topic}-{turn}")
        rate = 1 / statistics.median(seconds[True])
        return Sample(_percent(seconds), details={_CPU: _percent(spent), "records_a_second_with_it": rate})

    return measure


def _percent(figures: dict[bool, list[float]]) -> float:
    without = statistics.median(figures[False])
    return 100 * statistics.median(figures[True]) / without if without else float("nan")


def _ask(broker: Broker, request: Request, version: int) -> Response:
    with WireClient("127.0.0.1", broker.port, timeout_s=PATIENCE_S) as client:
        return client.ask(request, version)


# -- access control lists ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def beside_lists(context: Context, broker: Broker) -> Iterator[Pick]:
    """Give the broker an authorizer and 10,000 ACLs, and start another one without."""
    broker.settings = {**broker.settings, **AUTHORIZER}
    broker.restart()
    context.load.run("first", broker.address, READY_TOPIC)
    _make_lists(context, broker)
    other = broker.another()
    try:
        other.start()
        context.load.run("first", other.address, READY_TOPIC)
        yield lambda has_it: broker if has_it else other
    finally:
        other.stop()
        other.remove()


def _make_lists(context: Context, broker: Broker) -> None:
    """Create 10,000 ACLs, and those that let everyone use the benchmark's topics."""
    count = few(context, ACLS)
    own = [_list("bench-", PatternType.PREFIXED, "User:*", AclOperation.ALL)]
    others = [
        _list(
            f"team-{number // 20 % 97}.{number // 2:0{4 + number // 2 % 7}}", pattern, f"User:u{number // 4}", operation
        )
        for number in range(count)
        for pattern in [PatternType.PREFIXED if number // 2 % PREFIXED_EVERY == 0 else PatternType.LITERAL]
        for operation in [AclOperation.WRITE if number % 2 else AclOperation.READ]
    ]
    wanted = own + others
    for at in range(0, len(wanted), ACLS_AT_ONCE):
        request = CreateAclsRequest(creations=wanted[at : at + ACLS_AT_ONCE])
        answer = _ask(broker, request, 1)
        assert isinstance(answer, CreateAclsResponse)
        if any(result.error_code for result in answer.results):
            raise RuntimeError(f"{broker.name} did not make the ACLs: {answer.results[0]}")


def _list(name: str, pattern: PatternType, principal: str, operation: AclOperation) -> CreateAclsRequest.AclCreation:
    return CreateAclsRequest.AclCreation(
        resource_type=ResourceType.TOPIC,
        resource_name=name,
        resource_pattern_type=pattern,
        principal=principal,
        host="*",
        operation=operation,
        permission_type=AclPermissionType.ALLOW,
    )


# -- quotas ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def in_turn_with_quotas(context: Context, broker: Broker) -> Iterator[Pick]:  # noqa: ARG001
    """Set the quotas before a load with them, and remove them before one without."""

    def pick(has_it: bool) -> Broker:
        _set_quotas(broker, has_it)
        return broker

    yield pick


def _set_quotas(broker: Broker, has_it: bool) -> None:
    """Set quotas for every client, far above its usage, or remove them."""
    entity = AlterClientQuotasRequest.EntityData(entity_type="client-id", entity_name=None)
    changes = [
        AlterClientQuotasRequest.OpData(key=key, value=NEVER_REACHED if has_it else 0, remove=not has_it)
        for key in QUOTAS
    ]
    entry = AlterClientQuotasRequest.EntryData(entity=[entity], ops=changes)
    answer = _ask(broker, AlterClientQuotasRequest(entries=[entry], validate_only=False), 0)
    assert isinstance(answer, AlterClientQuotasResponse)
    if answer.entries[0].error_code:
        raise RuntimeError(f"{broker.name} did not take the quotas: {answer.entries[0].error_message}")


def _compared(name: str, title: str, measure: Measure, most_percent: float | None = None) -> Scenario:
    limits = {} if most_percent is None else {_CPU: most_percent}
    return Scenario(name, title, "% of time", measure, higher_is_better=False, limit=most_percent, detail_limits=limits)


SCENARIOS = [
    _compared("acls-produce", "10,000 ACLs: produce 1 kB", compared(1_000_000, 1000, "produce", beside_lists), 103),
    _compared("acls-unbatched", "10,000 ACLs: 1 record a request", compared(100_000, 100, "unbatched", beside_lists)),
    _compared("quotas-produce", "quotas: produce 1 kB", compared(1_000_000, 1000, "produce", in_turn_with_quotas), 102),
    _compared(
        "quotas-unbatched", "quotas: 1 record a request", compared(100_000, 100, "unbatched", in_turn_with_quotas)
    ),
]
