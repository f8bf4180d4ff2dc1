"""Which of the eight quota levels applies to a client, for each kind of quota."""

from __future__ import annotations

from typing import Final

from tests.kit.wire_requests import fetch
from tests.parity.limited_clients import (
    CHANGED,
    MANY,
    READ,
    TIME,
    USER,
    WINDOW_S,
    WRITTEN,
    Changes,
    Parts,
    change,
    new_topics,
    quotas,
    throttle_ms,
    written,
)
from tests.parity.subject import Subject, scenario_for_each

BYTES: Final = 100_000
PARTITIONS: Final = 12
BURST_S: Final = WINDOW_S + 1
"""Topic changes may be ahead of their quota by this much."""
LEVELS: Final = (
    "user_and_client",
    "user_and_default_client",
    "user",
    "default_user_and_client",
    "default_user_and_default_client",
    "default_user",
    "client",
    "default_client",
)
SHARED: Final = ("user", "default_user")
"""Levels whose quota is shared by all client ids."""
OWN_LEVELS: Final = {level: level for level in LEVELS if level not in SHARED}


def entity(level: str, client_id: str) -> Parts:
    """The entity at that level that matches a client of the user."""
    user = None if "default_user" in level else USER
    named = None if "default_client" in level else client_id
    parts: Parts = {"user": user} if "user" in level else {}
    return {**parts, "client-id": named} if "client" in level else parts


def wait_s(index: int) -> float:
    """The throttle time in seconds at that level; the levels differ by ten seconds, which identifies them."""
    return 5 + 10 * index


def tens(throttle_time_ms: int) -> int:
    """Identify the level."""
    return throttle_time_ms // 10_000


@scenario_for_each(OWN_LEVELS)
def of_bytes_written(b: Subject, level: str) -> None:
    topic, name = b.topic(), b.name("client")
    with quotas(b, *limits(level, name, WRITTEN, BYTES, WINDOW_S)):
        b.note("level", tens(throttle_ms(b, name, written(topic, BYTES))))


@scenario_for_each(OWN_LEVELS)
def of_bytes_read(b: Subject, level: str) -> None:
    topic, name = b.topic(), b.name("client")
    b.produce(topic, b"x" * BYTES)
    with quotas(b, *limits(level, name, READ, BYTES, WINDOW_S)):
        b.note("level", tens(throttle_ms(b, name, fetch(topic, 0), 12)))


@scenario_for_each(OWN_LEVELS)
def of_changed_topics(b: Subject, level: str) -> None:
    name = b.name("client")
    with quotas(b, *limits(level, name, CHANGED, PARTITIONS, BURST_S)):
        with b.another(name) as connection:
            b.ask(new_topics(b.name("first"), partitions=PARTITIONS), 7, connection)
        b.note("level", tens(throttle_ms(b, name, new_topics(b.name("second")), 7)))


def limits(level: str, client_id: str, kind: str, used: float, ahead_s: int) -> list[tuple[Parts, Changes]]:
    """Quotas of this level and all less specific ones; the same usage gives a different throttle time at each."""
    return [
        (entity(each, client_id), {kind: limit(kind, used / (ahead_s + wait_s(index)))})
        for index, each in enumerate(LEVELS)
        if index >= LEVELS.index(level)
    ]


def limit(kind: str, value: float) -> float:
    """Bytes come whole."""
    return round(value) if "byte" in kind else value


@scenario_for_each(OWN_LEVELS)
def of_time(b: Subject, level: str) -> None:
    """A quota of almost no time throttles a client for a whole window at once."""
    for counts, others in ((1e-9, MANY), (MANY, 1e-9)):
        name = b.name(f"client-{counts}")
        entries: list[tuple[Parts, Changes]] = [
            (entity(each, name), {TIME: counts if each == level else others}) for each in LEVELS[LEVELS.index(level) :]
        ]
        with quotas(b, *entries):
            b.note("throttle time", throttle_ms(b, name, new_topics(b.name(), validate_only=True), 7))


@scenario_for_each({"written": WRITTEN, "read": READ, "changed": CHANGED, "time": TIME})
def of_users(b: Subject, kind: str) -> None:
    """The user's quota precedes the default user's; quotas for client ids of the default user are another level."""
    topic, name = b.topic(), b.name("client")
    b.produce(topic, b"x" * BYTES)
    lower: list[tuple[Parts, Changes]] = [(entity(each, name), {kind: MANY}) for each in LEVELS[6:]]
    between: list[tuple[Parts, Changes]] = [(entity(each, name), {kind: MANY}) for each in LEVELS[3:5]]
    user, default_user = ({"user": each} for each in (USER, None))
    small, smaller = {
        WRITTEN: (BYTES // 25, 2 * BYTES // 55),
        READ: (BYTES // 25, BYTES // 55),
        CHANGED: (PARTITIONS / 56, PARTITIONS / 58),
        TIME: (1e-9, 1e-9),
    }[kind]
    with quotas(b, (user, {kind: small}), *between, (default_user, {kind: MANY}), *lower):
        b.note("user", asked(b, kind, topic, name))
        change(b, (user, {kind: None}))
        b.note("default user and client", asked(b, kind, topic, name))
        change(b, *((parts, {kind: None}) for parts, _ in between), (default_user, {kind: smaller}))
        b.note("default user", asked(b, kind, topic, name))
        change(b, (default_user, {kind: None}))
        b.note("client", asked(b, kind, topic, name))


def asked(b: Subject, kind: str, topic: str, client_id: str) -> int:
    """The throttle time after a use of that kind, rounded so that short delays do not matter."""
    match kind:
        case "producer_byte_rate":
            return tens(throttle_ms(b, client_id, written(topic, BYTES)))
        case "consumer_byte_rate":
            return tens(throttle_ms(b, client_id, fetch(topic, 0), 12))
        case "controller_mutation_rate":
            topics = new_topics(b.name(f"{len(b.transcript)}"), partitions=PARTITIONS)
            return throttle_ms(b, client_id, topics, 5) // 30_000
        case _:
            return throttle_ms(b, client_id, new_topics(b.name("judged"), validate_only=True), 7)
