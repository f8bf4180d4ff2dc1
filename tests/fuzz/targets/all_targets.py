"""Every target."""

from __future__ import annotations

from tests.fuzz.runner import Target
from tests.fuzz.targets import (
    handshakes,
    logins,
    messages,
    nodes,
    passwords,
    principals,
    sessions,
    signed_tokens,
    tickets,
    token_requests,
)

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (
        messages, passwords, sessions, handshakes, tickets, signed_tokens, logins, principals, nodes, token_requests,
    )
    for target in module.TARGETS
}  # fmt: skip
"""By their names."""


def shares(inputs: int, names: list[str]) -> dict[str, int]:
    """The number of inputs of a run for each of the given targets; they add up to the total."""
    whole = sum(TARGETS[name].share for name in names)
    found = {name: max(1, int(inputs * TARGETS[name].share / whole)) for name in names}
    most = max(names, key=lambda name: TARGETS[name].share)
    found[most] += max(0, inputs - sum(found.values()))
    return found
