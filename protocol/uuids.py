"""Ids of topics, clusters and tokens (Kafka's class `Uuid`)."""

from __future__ import annotations

import base64
import binascii
from typing import Final, Self


class Uuid(bytes):
    """An id: the 16 bytes that stand for it on the wire. Nobody checks that they are 16.

    Compared, hashed and ordered as bytes are. As text it is 22 characters, Kafka's form of it.
    """

    __slots__ = ()

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse Kafka's text form. Raises ValueError when `text` is not 16 bytes in URL-safe base64."""
        if "+" in text or "/" in text:  # of the other base64, which the decoder would let through
            raise ValueError(f"{text!r} is not an id in URL-safe base64")
        try:
            raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error):
            raise ValueError(f"{text!r} is not an id in URL-safe base64") from None
        if len(raw) != 16:
            raise ValueError(f"{text!r} holds {len(raw)} bytes; an id has 16")
        return cls(raw)

    @classmethod
    def version_4(cls, bits: int) -> Self:
        """The random id that is made of 128 random bits: six of them give way to RFC 9562's variant and version."""
        bits = bits & ~(0xC000 << 48) | 0x8000 << 48
        bits = bits & ~(0xF000 << 64) | 4 << 76
        return cls(bits.to_bytes(16, "big"))

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self).rstrip(b"=").decode("ascii")

    def __repr__(self) -> str:
        return f"Uuid({str(self)!r})"

    def dashed(self) -> str:
        """RFC 9562's text form, 32 hex digits in five groups: what Java's `UUID` writes."""
        digits = self.hex()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


ZERO_UUID: Final = Uuid(bytes(16))
"""The id that means "no id" on the wire."""
