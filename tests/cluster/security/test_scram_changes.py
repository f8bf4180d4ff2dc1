"""Refused changes of SCRAM credentials, and names in paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.security.sanitizer import desanitized, sanitized
from cluster.security.scram_changes import CredentialChange, changed, check, iterations_of
from protocol.errors import ApiError, ErrorCode

GOOD = CredentialChange("alice", 1, 4096, b"salt", b"salted")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([GOOD.replace(user="")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([GOOD.replace(iterations=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([GOOD.replace(iterations=16_385)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([GOOD.replace(mechanism=3)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([CredentialChange("alice", 0)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([GOOD, CredentialChange("alice", 1)], ErrorCode.DUPLICATE_RESOURCE),
    ],
)
def test_a_user_with_a_bad_change_is_left_alone(changes: list[CredentialChange], code: ErrorCode) -> None:
    check([GOOD, GOOD.replace(mechanism=2)])
    with pytest.raises(ApiError) as raised:
        check(changes)
    assert raised.value.error_code is code


def test_other_settings_of_a_user_stay() -> None:
    config = changed({"producer_byte_rate": "1"}, [GOOD])
    assert iterations_of(config) == {1: 4096}
    assert changed(config, [CredentialChange("alice", 1)]) == {"producer_byte_rate": "1"}
    with pytest.raises(ApiError, match="does not exist"):
        changed(config, [CredentialChange("alice", 2)])
    with pytest.raises(ApiError, match="SCRAM-SHA-256: not a SCRAM credential"):
        iterations_of({"SCRAM-SHA-256": "salt=x"})


@given(st.text())
def test_names_survive_their_path(name: str) -> None:
    encodable = name.encode("utf-8", "ignore").decode()
    assert desanitized(sanitized(encodable)) == encodable
    assert "/" not in sanitized(encodable)


def test_names_are_written_as_by_kafka() -> None:
    assert sanitized("CN=a b*~/é<default>") == "CN%3Da%20b%2A%7E%2F%C3%A9%3Cdefault%3E"
    assert desanitized("50%25+%zz%") == "50% %zz%"
