"""Dates by a pattern of Java's `SimpleDateFormat`: a run of one letter is a field, quotes keep letters as they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Final

_PARTS: Final = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|[^A-Za-z']+|'")


def _number(get: Callable[[datetime], int]) -> Callable[[datetime, int], str]:
    return lambda date, width: f"{get(date):0{width}d}"


def _zone_offset(date: datetime, width: int) -> str:
    offset = date.strftime("%z")[:5]
    if width == 1:
        return offset[:3]
    return offset if width == 2 else f"{offset[:3]}:{offset[3:]}"


_FIELDS: Final[dict[str, Callable[[datetime, int], str]]] = {
    "y": lambda date, width: f"{date.year % 100:02d}" if width == 2 else f"{date.year:0{width}d}",
    "M": lambda date, width: date.strftime("%B" if width > 3 else "%b") if width > 2 else f"{date.month:0{width}d}",
    "d": _number(lambda date: date.day),
    "D": _number(lambda date: date.timetuple().tm_yday),
    "E": lambda date, width: date.strftime("%A" if width > 3 else "%a"),
    "u": _number(lambda date: date.isoweekday()),
    "a": lambda date, _: "AM" if date.hour < 12 else "PM",
    "H": _number(lambda date: date.hour),
    "k": _number(lambda date: date.hour or 24),
    "K": _number(lambda date: date.hour % 12),
    "h": _number(lambda date: date.hour % 12 or 12),
    "m": _number(lambda date: date.minute),
    "s": _number(lambda date: date.second),
    "S": _number(lambda date: date.microsecond // 1000),
    "z": lambda date, _: date.strftime("%Z"),
    "Z": lambda date, _: date.strftime("%z")[:5],
    "X": _zone_offset,
}


class DateFormat:
    """A pattern. Raises ValueError, with Java's words, for one that cannot be read; names of days are English."""

    def __init__(self, pattern: str) -> None:
        self._parts: list[str | tuple[Callable[[datetime, int], str], int]] = []
        for match in _PARTS.finditer(pattern):
            text, letter = match[0], match[1]
            if letter is not None:
                if letter not in _FIELDS:
                    raise ValueError(f"Illegal pattern character '{letter}'")
                self._parts.append((_FIELDS[letter], len(text)))
            elif text == "'":
                raise ValueError("Unterminated quote")
            elif text.startswith("'"):
                self._parts.append(text[1:-1].replace("''", "'") or "'")
            else:
                self._parts.append(text)

    def format(self, timestamp_ms: int) -> str:
        """A timestamp in local time."""
        seconds, milliseconds = divmod(timestamp_ms, 1000)
        date = datetime.fromtimestamp(seconds).astimezone().replace(microsecond=milliseconds * 1000)
        return "".join(part if isinstance(part, str) else part[0](date, part[1]) for part in self._parts)
