"""Dates in the patterns of Java's `SimpleDateFormat`, as far as times on a command line need them."""

from __future__ import annotations

import re
from datetime import datetime

from tools.support.common import ToolError

_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")

_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
           "December")  # fmt: skip

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def format_date(moment: datetime, pattern: str) -> str:
    """`moment`, which has a time zone, in a pattern. Raises ToolError for an unsupported letter."""
    parts = []
    for match in _TOKEN.finditer(pattern):
        quoted, letter = match[1], match[2]
        if quoted is not None:
            parts.append(quoted.replace("''", "'") or "'")
        elif letter is None:
            parts.append(match[0])
        else:
            parts.append(_field(moment, letter, len(match[0])))
    return "".join(parts)


def _field(moment: datetime, letter: str, width: int) -> str:
    numbers = {
        "d": moment.day,
        "D": moment.timetuple().tm_yday,
        "H": moment.hour,
        "k": moment.hour or 24,
        "h": moment.hour % 12 or 12,
        "K": moment.hour % 12,
        "m": moment.minute,
        "s": moment.second,
        "S": moment.microsecond // 1000,
        "u": moment.isoweekday(),
    }
    if letter in numbers:
        return f"{numbers[letter]:0{width}}"
    if letter == "y":
        return f"{moment.year % 100:02}" if width == 2 else f"{moment.year:0{width}}"
    if letter == "M":
        return f"{moment.month:0{width}}" if width < 3 else _MONTHS[moment.month - 1][: 3 if width == 3 else None]
    if letter == "E":
        return _DAYS[moment.weekday()][: None if width > 3 else 3]
    if letter == "a":
        return "AM" if moment.hour < 12 else "PM"
    offset = moment.strftime("%z")
    if letter == "Z":
        return offset
    if letter == "X":
        return "Z" if offset == "+0000" else {1: offset[:3], 2: offset}.get(width, f"{offset[:3]}:{offset[3:]}")
    if letter == "z":
        return moment.tzname() or offset
    raise ToolError(f"Illegal pattern character '{letter}'")
