"""User names and client ids as parts of a znode's path (Kafka class `Sanitizer`)."""

from __future__ import annotations

import string
from typing import Final

_SAFE: Final = frozenset((string.ascii_letters + string.digits + "._-").encode())


def sanitized(name: str) -> str:
    """`name` with everything but letters, digits, dots, underscores and dashes as %XX of its UTF-8."""
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in name.encode())


def desanitized(name: str) -> str:
    """The inverse of `sanitized`. Malformed %XX sequences stay unchanged."""
    if "%" not in name and "+" not in name:
        return name
    first, *escaped = name.replace("+", " ").encode().split(b"%")
    result = bytearray(first)
    for piece in escaped:
        digits = piece[:2].decode(errors="replace")
        if len(digits) == 2 and all(digit in string.hexdigits for digit in digits):
            result += bytes.fromhex(digits) + piece[2:]
        else:
            result += b"%" + piece
    return result.decode(errors="replace")
