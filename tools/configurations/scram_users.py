"""SCRAM users in kafka-configs (Kafka class `ConfigCommand`)."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from client.kafka_client import KafkaClient
from client.security_admin import SaltedPassword, alter_scram_user, describe_scram_users
from config.broker_keys import SCRAM_KEYS
from protocol.errors import ApiError, ErrorCode
from protocol.scram_mechanisms import MIN_ITERATIONS
from tools.configurations.quotas import RefusedError
from tools.support.error_texts import exception_text

_PASSWORD: Final = re.compile(r"(?:iterations=(?P<iterations>-?[0-9]*),)?password=(?P<password>.*)")
_MOST_ITERATIONS: Final = 2**31 - 1
_SALT_BITS: Final = 130
_DIGITS: Final = string.digits + string.ascii_lowercase


async def describe(client: KafkaClient, users: Iterable[str]) -> None:
    """Print the iterations of these users, or of every user with a credential."""
    for user, found in (await describe_scram_users(client, users)).items():
        if not isinstance(found, ApiError):
            told = ", ".join(f"{mechanism}=iterations={iterations}" for mechanism, iterations in found.items())
            print(f"SCRAM credential configs for user-principal '{user}' are {told}")
        elif found.error_code is not ErrorCode.RESOURCE_NOT_FOUND:
            reason = f"ExecutionException: {exception_text(found)}"
            print(f"Error retrieving SCRAM credential configs for user-principal '{user}': {reason}")


async def alter(client: KafkaClient, user: str, added: Mapping[str, str], deleted: Sequence[str]) -> None:
    """Set and remove passwords of a user. Raises RefusedError, or ApiError if the broker refuses."""
    await alter_scram_user(client, user, salted_passwords(added), deleted)


def salted_passwords(added: Mapping[str, str]) -> list[SaltedPassword]:
    """The passwords of `iterations=N,password=P` by mechanism, each salted separately. Raises RefusedError."""
    return [_salted(mechanism, added[mechanism]) for mechanism in SCRAM_KEYS if mechanism in added]


def _salted(mechanism: str, text: str) -> SaltedPassword:
    # Do not show the mistake: it may contain the password.
    found = _PASSWORD.fullmatch(text)
    if found is None:
        raise RefusedError(f"Invalid credential property {mechanism}: it has to be [iterations=N,password=P]")
    given = found["iterations"]
    iterations = MIN_ITERATIONS if given in (None, "-1") else _number(given)
    if iterations < MIN_ITERATIONS:
        raise RefusedError(
            f"Iterations {iterations} is less than the minimum {MIN_ITERATIONS} required for {mechanism}"
        )
    if not found["password"]:
        raise RefusedError("Empty key")
    return SaltedPassword.of(mechanism, iterations, _new_salt(), found["password"])


def _number(text: str) -> int:
    if not text.lstrip("-") or int(text) > _MOST_ITERATIONS:
        raise RefusedError(f'For input string: "{text}"')
    return int(text)


def _new_salt() -> bytes:
    """A salt like Kafka's (`ScramFormatter.secureRandomBytes`); brokers invent similar ones for unknown users."""
    number, letters = secrets.randbits(_SALT_BITS), ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        letters = _DIGITS[digit] + letters
    return letters.encode()
