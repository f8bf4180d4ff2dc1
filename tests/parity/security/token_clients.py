"""Users that request delegation tokens from a broker, in a scenario."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tests.kit.wire_client import WireClient
from tests.parity.subject import Subject

Renewer = CreateDelegationTokenRequest.CreatableRenewers
Owner = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
UNIT_MS = 1_000_000
"""Periods are multiples of this: a scenario is much shorter, so times can be rounded to units."""


def creation(
    *renewers: str, owner: str = "", owner_type: str | None = None, lifetime_ms: int = -1
) -> CreateDelegationTokenRequest:
    """A request for the user's own token, unless an owner is named. Renewers are `type:name`, with User as the default
    type.
    """
    split = [each.split(":") if ":" in each else ("User", each) for each in renewers]
    return CreateDelegationTokenRequest(
        owner_principal_type=("User" if owner else "") if owner_type is None else owner_type,
        owner_principal_name=owner,
        renewers=[Renewer(principal_type=kind, principal_name=name) for kind, name in split],
        max_lifetime_ms=lifetime_ms,
    )


class TokenClients:
    """The users of one scenario. Random ids and HMACs, and the time of day, are omitted from its transcript."""

    def __init__(self, subject: Subject, connection_of: Callable[[str], WireClient]) -> None:
        self._subject = subject
        self._connection_of = connection_of
        self._made: dict[str, tuple[str, Any]] = {}
        """By id: a name for the transcript, and the answer with the token."""

    def make(self, user: str, request: CreateDelegationTokenRequest, version: int = 3) -> Any:
        """Create a token; returns the answer."""
        answer: Any = self._connection_of(user).ask(request, version)
        if answer.error_code == ErrorCode.NONE:
            self._made[answer.token_id] = f"token {len(self._made) + 1}", answer
        self._note(
            f"CreateDelegationToken v{version} of {user}",
            {
                "error_code": answer.error_code,
                "owner": f"{answer.principal_type}:{answer.principal_name}",
                "requester": f"{answer.token_requester_principal_type}:{answer.token_requester_principal_name}",
                "issued": answer.issue_timestamp_ms,
                "expires after": answer.expiry_timestamp_ms - answer.issue_timestamp_ms,
                "lives": answer.max_timestamp_ms - answer.issue_timestamp_ms,
                "id": len(answer.token_id),
                "hmac": len(answer.hmac),
            },
        )
        return answer

    def renew(self, user: str, token: Any, period_ms: int = -1, version: int = 2) -> None:
        """Renew the token of an answer."""
        request = RenewDelegationTokenRequest(hmac=bytes(token.hmac), renew_period_ms=period_ms)
        answer: Any = self._connection_of(user).ask(request, version)
        self._note_end(f"RenewDelegationToken v{version} of {user}", token, answer)

    def expire(self, user: str, token: Any, period_ms: int = -1, version: int = 2) -> None:
        """Shorten the life of a token."""
        request = ExpireDelegationTokenRequest(hmac=bytes(token.hmac), expiry_time_period_ms=period_ms)
        answer: Any = self._connection_of(user).ask(request, version)
        self._note_end(f"ExpireDelegationToken v{version} of {user}", token, answer)

    def _note_end(self, label: str, token: Any, answer: Any) -> None:
        end_ms = answer.expiry_timestamp_ms
        units = end_ms if end_ms == -1 else round((end_ms - token.issue_timestamp_ms) / UNIT_MS)
        self._note(label, {"error_code": answer.error_code, "ends after": units})

    def describe(self, user: str, owners: list[str] | None = None, version: int = 3) -> None:
        """Describe the scenario's tokens: all, or those of some owners of the type User."""
        asked = None if owners is None else [Owner(principal_type="User", principal_name=each) for each in owners]
        answer: Any = self._connection_of(user).ask(DescribeDelegationTokenRequest(owners=asked), version)
        found = {}
        for each in answer.tokens:
            if each.token_id in self._made:
                name, made = self._made[each.token_id]
                found[name] = {
                    "owner": f"{each.principal_type}:{each.principal_name}",
                    "requester": f"{each.token_requester_principal_type}:{each.token_requester_principal_name}",
                    "renewers": [f"{one.principal_type}:{one.principal_name}" for one in each.renewers],
                    "issue and max": [
                        each.issue_timestamp == made.issue_timestamp_ms,
                        each.max_timestamp == made.max_timestamp_ms,
                    ],
                    "ends after": round((each.expiry_timestamp - each.issue_timestamp) / UNIT_MS),
                    "hmac": bytes(each.hmac) == bytes(made.hmac),
                }
        self._note(
            f"DescribeDelegationToken v{version} of {user}",
            {"error_code": answer.error_code, "tokens": {name: found[name] for name in sorted(found)}},
        )

    def _note(self, label: str, value: Any) -> None:
        self._subject.note(label, value)
