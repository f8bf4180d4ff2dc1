"""Changes of SCRAM credentials: validation, with Kafka's messages (`ZkAdminManager.alterUserScramCredentials`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from protocol.errors import ApiError, ErrorCode
from protocol.scram_mechanisms import MAX_ITERATIONS, MECHANISMS, MIN_ITERATIONS
from protocol.value import Value

NO_NAME: Final = "Username must not be empty"


class CredentialChange(Value):
    """A credential to set, or to remove if `salted_password` is None."""

    user: str
    mechanism: int
    iterations: int = 0
    salt: bytes = b""
    salted_password: bytes | None = None


def check(changes: Sequence[CredentialChange]) -> None:
    """Raise ApiError for invalid changes of one user, independent of the user's current credentials."""
    for change in changes:
        _check(change)
    if len({change.mechanism for change in changes}) < len(changes):
        text = "A user credential cannot be altered twice in the same request"
        raise ApiError(ErrorCode.DUPLICATE_RESOURCE, text)


def _check(change: CredentialChange) -> None:
    if not change.user:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, NO_NAME)
    if change.mechanism not in MECHANISMS:
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if change.salted_password is not None:
        if change.iterations > MAX_ITERATIONS:
            raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
        if change.iterations < MIN_ITERATIONS:
            raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
        if not change.salted_password:
            raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salted password is empty")


def changed(config: Mapping[str, str], changes: Sequence[CredentialChange]) -> dict[str, str]:
    """A user's configuration after changes that passed `check`. Raises ApiError(RESOURCE_NOT_FOUND)."""
    from security.sasl_exchange import ScramCredential  # imports OpenSSL's hashes, which most brokers never need

    result = dict(config)
    for change in changes:
        mechanism = MECHANISMS[change.mechanism]
        if change.salted_password is not None:
            credential = ScramCredential.from_salted_password(
                mechanism, change.salted_password, change.salt, change.iterations
            )
            result[mechanism] = credential.to_text()
        elif result.pop(mechanism, None) is None:
            text = "Attempt to delete a user credential that does not exist"
            raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, text)
    return result


def iterations_of(config: Mapping[str, str]) -> dict[int, int]:
    """Iterations of each of a user's credentials, by the mechanism's number. Raises ApiError for a damaged one."""
    from security.sasl_exchange import ScramCredential

    found = {}
    for number, name in MECHANISMS.items():
        if name in config:
            try:
                found[number] = ScramCredential.from_text(config[name]).iterations
            except ValueError as error:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{name}: {error}") from error
    return found
