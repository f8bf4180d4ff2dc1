"""Kafka's text form of ids: the 16 bytes in URL-safe base64 without padding, 22 characters (Kafka class `Uuid`)."""

from __future__ import annotations

import base64
import binascii
from typing import Final
from uuid import UUID

ZERO_UUID: Final = UUID(int=0)
"""The UUID that means "no id" on the wire."""


def uuid_to_text(value: UUID) -> str:
    """The 22 characters that Kafka writes into files, znodes and logs for `value`."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> UUID:
    """Parse what `uuid_to_text` wrote. Raises ValueError when `text` is not 16 bytes in URL-safe base64."""
    if "+" in text or "/" in text:  # of the other base64, which the decoder would let through
        raise ValueError(f"{text!r} is not an id in URL-safe base64")
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise ValueError(f"{text!r} is not an id in URL-safe base64") from None
    if len(raw) != 16:
        raise ValueError(f"{text!r} holds {len(raw)} bytes; an id has 16")
    return UUID(bytes=raw)
