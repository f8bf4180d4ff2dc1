"""Administration of users of SCRAM (Kafka class `KafkaAdminClient`; KIP-554)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from client.errors import raise_for, refusal
from client.kafka_client import KafkaClient
from protocol.errors import ApiError
from protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from protocol.scram_mechanisms import HASHES, MECHANISMS

_NUMBERS = {name: number for number, name in MECHANISMS.items()}


class SaltedPassword(NamedTuple):
    """A password as it is told to a broker."""

    mechanism: str
    iterations: int
    salt: bytes
    salted: bytes

    @classmethod
    def of(cls, mechanism: str, iterations: int, salt: bytes, password: str) -> SaltedPassword:
        """Hashes for some milliseconds, or longer with many iterations."""
        salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
        return cls(mechanism, iterations, salt, salted)


async def describe_scram_users(
    client: KafkaClient, users: Iterable[str] = ()
) -> dict[str, Mapping[str, int] | ApiError]:
    """The iterations of each mechanism of these users, or of all that have one; or why that is not known of one.

    Raises ApiError.
    """
    user = DescribeUserScramCredentialsRequest.UserName
    request = DescribeUserScramCredentialsRequest(users=[user(name=name) for name in users])
    response = await client.ask_any("describeUserScramCredentials", request, DescribeUserScramCredentialsResponse)
    raise_for(response.error_code, response.error_message)
    return {
        each.user: refusal(each.error_code, each.error_message)
        or {MECHANISMS.get(info.mechanism, "UNKNOWN"): info.iterations for info in each.credential_infos}
        for each in response.results
    }


async def alter_scram_user(
    client: KafkaClient, user: str, passwords: Iterable[SaltedPassword], removed: Iterable[str]
) -> None:
    """Set passwords of a user, and take away those for the mechanisms `removed`. Raises ApiError."""
    deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    request = AlterUserScramCredentialsRequest(
        deletions=[deletion(name=user, mechanism=_NUMBERS[mechanism]) for mechanism in removed],
        upsertions=[
            upsertion(
                name=user,
                mechanism=_NUMBERS[each.mechanism],
                iterations=each.iterations,
                salt=each.salt,
                salted_password=each.salted,
            )
            for each in passwords
        ],
    )

    def error_codes(response: AlterUserScramCredentialsResponse) -> list[int]:
        return [each.error_code for each in response.results]

    response = await client.ask_controller(
        "alterUserScramCredentials", request, AlterUserScramCredentialsResponse, error_codes
    )
    for each in response.results:
        raise_for(each.error_code, each.error_message)
