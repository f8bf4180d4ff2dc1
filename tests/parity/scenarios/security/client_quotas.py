"""DescribeClientQuotas and AlterClientQuotas. A scenario removes its quotas: others see all quotas."""

from __future__ import annotations

from protocol.messages.quotas import DescribeClientQuotasRequest
from tests.parity.limited_clients import Changes, Parts, alter_request
from tests.parity.subject import Subject, scenario

BYTES = "producer_byte_rate"
TIME = "request_percentage"
CONNECTIONS = "connection_creation_rate"


def quotas(b: Subject, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1) -> None:
    """DescribeClientQuotas."""
    component = DescribeClientQuotasRequest.ComponentData
    b.ask(
        DescribeClientQuotasRequest(
            components=[component(entity_type=kind, match_type=how, match=name) for kind, how, name in components],
            strict=strict,
        ),
        version,
    )


@scenario
def quotas_that_nobody_has_set(b: Subject) -> None:
    for version in (0, 1):
        quotas(b, version=version)
    quotas(b, strict=True)
    quotas(b, ("user", 0, "a"))
    quotas(b, ("user", 1, None), ("client-id", 2, None), strict=True)
    quotas(b, ("ip", 0, "127.0.0.1"))
    quotas(b, ("ip", 2, None))


@scenario
def quotas_with_bad_filters(b: Subject) -> None:
    quotas(b, ("user", 0, "a"), ("user", 1, None))
    quotas(b, ("client-id", 0, "a"), ("client-id", 1, None))
    quotas(b, ("ip", 0, "127.0.0.1"), ("ip", 1, None))
    quotas(b, ("", 0, "a"))
    quotas(b, ("planet", 0, "a"))
    quotas(b, ("user", 0, "a"), ("ip", 0, "127.0.0.1"))
    quotas(b, ("ip", 0, "127.0.0.1"), ("client-id", 0, "a"))
    quotas(b, ("user", 3, "a"))
    quotas(b, ("user", -1, None))
    quotas(b, ("user", 0, None))
    quotas(b, ("user", 1, "a"))
    quotas(b, ("user", 2, "a"))
    quotas(b, ("ip", 0, "not an address"))
    quotas(b, ("planet", 3, "a"), ("", 0, "a"))


def alter(b: Subject, *entries: tuple[Parts, Changes], validate_only: bool = False, version: int = 1) -> None:
    """AlterClientQuotas; a value of None removes a quota."""
    b.ask(alter_request(*entries, validate_only=validate_only), version)


@scenario
def quotas_of_all_kinds_of_entities(b: Subject) -> None:
    entities: list[Parts] = [
        {"user": "a"},
        {"user": None},
        {"client-id": "app"},
        {"client-id": None},
        {"user": "a", "client-id": "app"},
        {"client-id": None, "user": "a"},
        {"user": None, "client-id": "app"},
        {"user": None, "client-id": None},
        {"user": "CN=Bob, O=a/b", "client-id": "50% + *~"},
    ]
    for version, parts in enumerate(entities):
        alter(b, (parts, {BYTES: 1024.0}), version=version % 2)
        components = [(kind, 1 if name is None else 0, name) for kind, name in parts.items()]
        quotas(b, *components, strict=True, version=version % 2)
    quotas(b, ("user", 0, "a"), ("client-id", 0, "app"))
    for parts in entities:
        alter(b, (parts, {BYTES: None}))
    quotas(b)


@scenario
def quotas_of_addresses(b: Subject) -> None:
    alter(b, ({"ip": "10.1.2.3"}, {CONNECTIONS: 1000.0}))
    quotas(b, ("ip", 0, "10.1.2.3"))
    quotas(b, ("ip", 1, None))
    alter(b, ({"ip": None}, {CONNECTIONS: 100000.0}))
    quotas(b, ("ip", 1, None))
    alter(b, ({"ip": None}, {CONNECTIONS: None}), ({"ip": "10.1.2.3"}, {CONNECTIONS: None}))
    alter(b, ({"ip": "256.1.2.3"}, {CONNECTIONS: 1.0}))
    alter(b, ({"ip": "::1"}, {CONNECTIONS: 1.0}))
    alter(b, ({"ip": "not an address"}, {CONNECTIONS: 1.0}))
    alter(b, ({"ip": "10.1.2.3"}, {BYTES: 1.0}))
    alter(b, ({"ip": "10.1.2.3"}, {CONNECTIONS: -1.0}))
    alter(b, ({"ip": "10.1.2.3"}, {CONNECTIONS: 1.5}))
    alter(b, ({"ip": "10.1.2.3"}, {CONNECTIONS: 2.0**31}))
    quotas(b)


@scenario
def quotas_of_bad_entities(b: Subject) -> None:
    rate: Changes = {BYTES: 1.0}
    bad: list[Parts] = [
        {},
        {"planet": "a"},
        {"": "a"},
        {"user": ""},
        {"client-id": ""},
        {"ip": ""},
        {"user": "a", "ip": "10.0.0.1"},
        {"client-id": None, "ip": None},
        {"user": "", "planet": "a"},
    ]
    for parts in bad:
        alter(b, (parts, rate))
        alter(b, (parts, rate), validate_only=True)
    alter(b, ({"user": "fine"}, rate), ({"planet": "a"}, rate), ({"user": "fine"}, {BYTES: None}))
    alter(b)
    quotas(b)


@scenario
def quotas_of_all_kinds_of_values(b: Subject) -> None:
    for key in (BYTES, TIME, "controller_mutation_rate", CONNECTIONS, "SCRAM-SHA-256", "unknown", ""):
        for value in (0.0, 1.0, 1.5, 0.9999999, -1.0, -1e10, 1e-7, 1e18, 2.0**63, 1e300, 12345678.0, float("inf")):
            alter(b, ({"user": "values"}, {key: value}))
            quotas(b, ("user", 0, "values"))
            alter(b, ({"user": "values"}, {key: None}))
        alter(b, ({"user": "values"}, {key: 1.0}), validate_only=True)
        alter(b, ({"client-id": "values"}, {key: 1.0}))
        alter(b, ({"client-id": "values"}, {key: None}))
        quotas(b, ("user", 0, "values"))


@scenario
def quotas_that_are_only_judged(b: Subject) -> None:
    alter(b, ({"user": "judged"}, {BYTES: 1.0, TIME: 50.0}), validate_only=True)
    quotas(b, ("user", 0, "judged"))
    alter(b, ({"user": "judged"}, {BYTES: 1.0}), ({"client-id": "judged"}, {BYTES: 2.0}))
    alter(b, ({"user": "judged"}, {BYTES: None}), validate_only=True)
    quotas(b, ("user", 0, "judged"))
    alter(b, ({"user": "judged"}, {BYTES: None}), ({"client-id": "judged"}, {BYTES: None}))
    quotas(b)
