"""Names of users and clients as parts of a znode's path (Kafka class `Sanitizer`)."""

from __future__ import annotations

import string
from typing import Final

_SAFE: Final = frozenset((string.ascii_letters + string.digits + "._-").encode())


def sanitized(name: str) -> str:
    """`name` with everything but letters, digits, dots, underscores and dashes as %XX of its UTF-8."""
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in name.encode())


def desanitized(name: str) -> str:
    """The name of which `sanitized` made this."""
    pieces = name.split("%")
    encoded = pieces[0].encode() + b"".join(bytes.fromhex(each[:2]) + each[2:].encode() for each in pieces[1:])
    return encoded.decode("utf-8", "replace")
