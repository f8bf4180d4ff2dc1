"""The subjects of certificates, in the format of Java's X500Principal."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from security.principals import subject_of
from tests.kit.security.certificates import Authority, subject

AUTHORITY = Authority()


def written(name: x509.Name) -> str:
    return subject_of(AUTHORITY.issue(name).certificate.public_bytes(Encoding.DER))


def test_the_most_specific_part_is_first() -> None:
    name = subject("alice", COUNTRY_NAME="DE", ORGANIZATION_NAME="Odradek", ORGANIZATIONAL_UNIT_NAME="dev")
    assert written(name) == "CN=alice,OU=dev,O=Odradek,C=DE"


@pytest.mark.parametrize(
    ("common_name", "expected"),
    [
        ("a,b", r"CN=a\,b"),
        ('say "x"', r"CN=say \"x\""),
        ("a=b+c;d<e>f#g\\h", r"CN=a\=b\+c\;d\<e\>f\#g\\h"),
        (" edges ", r"CN=\ edges\ "),
        ("Zoë 日本", "CN=Zoë 日本"),
    ],
)
def test_letters_with_a_meaning_are_escaped(common_name: str, expected: str) -> None:
    assert written(subject(common_name)) == expected


def test_attributes_without_a_keyword_are_hexadecimal() -> None:
    assert written(subject("a", EMAIL_ADDRESS="a@b")) == "CN=a,1.2.840.113549.1.9.1=#1603614062"


def test_parts_of_one_level_are_joined() -> None:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, "a"), x509.NameAttribute(NameOID.USER_ID, "7")]
    assert written(x509.Name([x509.RelativeDistinguishedName(parts)])) in {"CN=a+UID=7", "UID=7+CN=a"}


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_other_bytes_are_an_error(noise: bytes, at: int, byte: int) -> None:
    certificate = bytearray(AUTHORITY.identity.certificate.public_bytes(Encoding.DER))
    certificate[at % len(certificate)] = byte
    for encoded in (noise, bytes(certificate), bytes(certificate[:at])):
        try:
            subject_of(encoded)
        except ValueError:
            continue
