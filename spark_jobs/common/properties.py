"""Files of Kafka client properties, as Java reads them (`java.util.Properties`), and as Kafka's tools take them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_ENTRY = re.compile(r"((?:\\.|[^\\=: \t\f])+)[ \t\f]*[=:][ \t\f]*(.*)")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: str) -> dict[str, str]:
    """The entries of a file in UTF-8. A backslash escapes what follows; at the end of a line, the line goes on in the
    next one. Raises OSError, and ValueError naming a line that is not an entry.
    """
    properties = {}
    for number, line in _logical_lines(Path(path).read_text(encoding="utf-8")):
        found = _ENTRY.fullmatch(line)
        if found is None:
            raise ValueError(f"{path}:{number}: not 'key=value': {line}")
        properties[_plain(found[1])] = _plain(found[2])
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each with the number of its first line, without comments and what is blank around it."""
    first, logical = 0, ""
    for number, natural in enumerate(text.splitlines(), start=1):
        line = natural.strip()
        if not logical and (not line or line[0] in "#!"):
            continue
        first = first or number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            logical += line[:-1]
            continue
        yield first, logical + line
        first, logical = 0, ""
    if logical:
        yield first, logical


def _plain(written: str) -> str:
    return _ESCAPE.sub(lambda found: _letter(found[1]), written)


def _letter(escaped: str) -> str:
    return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _LETTERS.get(escaped, escaped)
