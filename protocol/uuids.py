"""Ids of topics, clusters and tokens (Kafka's class `Uuid`)."""

from __future__ import annotations

import base64
import binascii
from typing import Final, Self


class Uuid(bytes):
    """An id: its 16 bytes on the wire. The length is not checked.

    Compared, hashed and ordered as bytes. Its text is Kafka's form of 22 characters.
    """

    __slots__ = ()

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse Kafka's text form. Raises ValueError unless `text` is 16 bytes in URL-safe base64."""
        if "+" in text or "/" in text:  # from standard base64, which the decoder would accept
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
        """A random id from 128 random bits, six of them replaced by RFC 9562's variant and version."""
        bits = bits & ~(0xC000 << 48) | 0x8000 << 48
        bits = bits & ~(0xF000 << 64) | 4 << 76
        return cls(bits.to_bytes(16, "big"))

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self).rstrip(b"=").decode("ascii")

    def __repr__(self) -> str:
        return f"Uuid({str(self)!r})"

    def dashed(self) -> str:
        """RFC 9562's text form, 32 hex digits in five groups, as Java's `UUID` writes it."""
        digits = self.hex()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


ZERO_UUID: Final = Uuid(bytes(16))
"""The id that means "no id" on the wire."""
