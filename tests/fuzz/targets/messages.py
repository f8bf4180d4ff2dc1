"""Messages that are decoded before or during authentication: headers, SASL, delegation tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from protocol.errors import DecodeError
from protocol.messages import api_versions, delegation_tokens, headers, security
from protocol.wire.schema import Message
from tests.fuzz.mutation import mutated
from tests.fuzz.runner import Target, Trial
from tests.protocol.values import SeededSource, build

FIRST: tuple[type[Message], ...] = (
    headers.RequestHeader,
    api_versions.ApiVersionsRequest,
    security.SaslHandshakeRequest,
    security.SaslAuthenticateRequest,
)
OF_TOKENS: tuple[type[Message], ...] = (
    delegation_tokens.CreateDelegationTokenRequest,
    delegation_tokens.RenewDelegationTokenRequest,
    delegation_tokens.ExpireDelegationTokenRequest,
    delegation_tokens.DescribeDelegationTokenRequest,
)
OF_SERVERS: tuple[type[Message], ...] = (
    headers.ResponseHeader,
    security.SaslHandshakeResponse,
    security.SaslAuthenticateResponse,
)
"""Decoded by the broker as a client."""


class MessageCase(NamedTuple):
    """Bytes, and the message that they should encode."""

    message: type[Message]
    version: int
    data: bytes
    is_whole: bool


class Messages:
    """Every version of each."""

    def __init__(self) -> None:
        self._whole = [
            MessageCase(message, version, build(message, version, SeededSource(seed)).to_bytes(version)[:2000], True)
            for message in (*FIRST, *FIRST, *OF_TOKENS, *OF_SERVERS)
            for version in range(message.min_version, message.max_version + 1)
            for seed in range(20)
        ]
        self._whole = [case for case in self._whole if len(case.data) < 2000]

    def make(self, draw: random.Random) -> MessageCase:
        case = draw.choice(self._whole)
        match draw.randrange(10):
            case 0:
                return case
            case 1:
                return case._replace(data=case.data[: draw.randrange(len(case.data) + 1)], is_whole=False)
            case 2:
                return case._replace(data=draw.randbytes(draw.randrange(60)), is_whole=False)
            case _:
                return case._replace(data=mutated(case.data, draw), is_whole=False)

    def check(self, case: MessageCase) -> bool:
        message, version, data, is_whole = case
        try:
            value, end = message.decode_prefix(memoryview(data), version)
        except DecodeError:
            assert not is_whole
            return False
        assert end <= len(data)
        encoded = value.to_bytes(version)
        if is_whole:
            assert encoded == data
        assert message.decode(encoded, version).to_bytes(version) == encoded
        return True


@contextmanager
def first_messages() -> Iterator[Trial]:
    """See `Messages`."""
    yield Messages()


TARGETS = (Target("messages", 200, first_messages),)
