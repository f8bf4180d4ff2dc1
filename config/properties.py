"""The .properties format as `java.util.Properties.load` reads it (JDK documentation of that method).

Comments (`#`, `!`), keys ended by `=`, `:` or blanks, backslash escapes with `\\uXXXX`, and logical lines continued
by a backslash before the line's end. The bytes of a file are ISO 8859-1, as Java reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from config.definitions import ConfigError

_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def load_properties(data: bytes) -> dict[str, str]:
    """Keys and values in the file's order; the last of several equal keys wins.

    Raises ConfigError when a `\\u` escape is not followed by four hexadecimal digits.
    """
    return parse_properties(data.decode("iso-8859-1"))


def parse_properties(text: str) -> dict[str, str]:
    """`load_properties` for text that is decoded already."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _split(line)
        key = _unescape(key, line)
        properties.pop(key, None)
        properties[key] = _unescape(value, line)
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    logical, continues = "", False
    lines = _LINE_END.split(text)
    if not lines[-1]:
        lines.pop()
    for natural in lines:
        line = natural.lstrip(_BLANKS)
        # A comment may also follow a line that is nothing but a backslash: Java looks only whether there is text yet.
        if not logical and (not line or line[0] in "#!"):
            continues = False
            continue
        continues = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        if continues:
            logical += line[:-1]
        else:
            yield logical + line
            logical = ""
    # Java's reader gives an empty last line when the text ends in a backslash, but not when CR LF is behind it.
    if logical or (continues and not text.endswith("\r\n")):
        yield logical


def _split(line: str) -> tuple[str, str]:
    """The escaped key and value of a logical line: the first unescaped separator ends the key."""
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANKS:
        position += 2 if line[position] == "\\" else 1
    value = line[position:].lstrip(_BLANKS)
    if value[:1] and value[0] in "=:":
        value = value[1:].lstrip(_BLANKS)
    return line[:position], value


def _unescape(text: str, line: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\" and position < len(text):
            character = text[position]
            position += 1
            if character == "u":
                digits = text[position : position + 4]
                if not re.fullmatch("[0-9a-fA-F]{4}", digits):
                    raise ConfigError(line, digits, "\\u must be followed by four hexadecimal digits")
                character = chr(int(digits, 16))
                position += 4
            else:
                character = _ESCAPES.get(character, character)
        elif character == "\\":
            continue
        parts.append(character)
    # Characters outside the basic plane are written as two escapes, a surrogate pair, which is one character here.
    return "".join(parts).encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")


def properties_text(properties: Mapping[str, str]) -> str:
    """The content of a file with these keys, whose values do not begin with a blank. Letters beyond ISO 8859-1 are
    escaped.
    """
    lines = (f"{key}={value}" for key, value in properties.items())
    text = "".join(f"{_escape(line)}\n" for line in lines)
    return text.encode("iso-8859-1", "backslashreplace").decode("iso-8859-1")


def _escape(line: str) -> str:
    return line.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
