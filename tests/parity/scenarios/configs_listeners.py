"""Listeners of a running broker: which changes are refused, and how."""

from __future__ import annotations

from tests.parity.scenarios.configs_alter import SET, incremental
from tests.parity.scenarios.configs_describe import BROKER
from tests.parity.subject import Subject, scenario

LISTENERS, ADVERTISED, PROTOCOLS = "listeners", "advertised.listeners", "listener.security.protocol.map"


def ask_for(b: Subject, **changes: str) -> None:
    """One change of broker 0, with validate_only."""
    keys = {"listeners": LISTENERS, "advertised": ADVERTISED, "protocols": PROTOCOLS}
    values = {keys[name]: text.replace("OWN", f"{b.host}:{b.port}") for name, text in changes.items()}
    configs = [(key, SET, value) for key, value in values.items()]
    incremental(b, (BROKER, "0", configs), validate_only=True)


@scenario
def inter_broker_listener_removed(b: Subject) -> None:
    ask_for(b, listeners="SSL://127.0.0.1:1")
    ask_for(b, listeners="OTHER://127.0.0.1:1", protocols="OTHER:PLAINTEXT")
    ask_for(b, listeners="PLAINTEXT://OWN,OTHER://127.0.0.1:1", advertised="OTHER://127.0.0.1:1",
            protocols="PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT")  # fmt: skip


@scenario
def listener_without_protocol(b: Subject) -> None:
    ask_for(b, listeners="PLAINTEXT://OWN,OTHER://127.0.0.1:1")
    ask_for(b, listeners="PLAINTEXT://OWN", protocols="OTHER:PLAINTEXT")
    ask_for(b, protocols="PLAINTEXT:NOTHING")
    ask_for(b, protocols="PLAINTEXT")


@scenario
def malformed_listeners(b: Subject) -> None:
    for text in ("", "PLAINTEXT", "PLAINTEXT://127.0.0.1", "PLAINTEXT://127.0.0.1:x", "PLAINTEXT://OWN,PLAINTEXT://OWN",
                 "PLAINTEXT://OWN,SASL_PLAINTEXT://OWN"):  # fmt: skip
        ask_for(b, listeners=text)


@scenario
def advertised_listeners_that_cannot_be(b: Subject) -> None:
    for text in ("", "PLAINTEXT://0.0.0.0:9092", "OTHER://127.0.0.1:1", "SSL://127.0.0.1:1", "PLAINTEXT",
                 "SSL://127.0.0.1:1,PLAINTEXT://OWN"):  # fmt: skip
        ask_for(b, advertised=text)


@scenario
def limits_of_a_listener(b: Subject) -> None:
    for key, value in (
        ("listener.name.plaintext.max.connections", "100"),
        ("listener.name.plaintext.max.connection.creation.rate", "100"),
        ("listener.name.plaintext.max.connection.creation.rate", "-1"),
    ):
        incremental(b, (BROKER, "0", [(key, SET, value)]), validate_only=True)


@scenario
def changes_that_are_taken(b: Subject) -> None:
    ask_for(b, advertised="PLAINTEXT://elsewhere:1234")
    both = "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT"
    ask_for(b, listeners="PLAINTEXT://OWN,OTHER://127.0.0.1:0", protocols=both)
    ask_for(b, protocols=both)
    incremental(b, (BROKER, "", [(ADVERTISED, SET, "PLAINTEXT://elsewhere:1234")]), validate_only=True)
