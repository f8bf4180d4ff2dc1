"""Lines of text as records: a value, or headers, key and value with separators (`LineMessageReader`). Also reads
standard input by lines, without a thread that would keep a waiting tool from ending.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import NamedTuple

from protocol.records.batch import Header
from tools.support.common import ToolError

DEFAULT_READERS = ("org.apache.kafka.tools.LineMessageReader", "kafka.tools.ConsoleProducer$LineMessageReader")
"""The class names that select this reader in Kafka's console producer."""


class Line(NamedTuple):
    """One parsed line."""

    key: bytes | None
    value: bytes | None
    headers: list[Header]


class LineReader:
    """Parses lines according to its properties. Bytes are not decoded, except for error messages."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Raise ToolError for separators that are equal."""
        self.line_number = 0
        self._parse_key = _flag(properties, "parse.key")
        self._parse_headers = _flag(properties, "parse.headers")
        self._ignore_error = _flag(properties, "ignore.error")
        names = {
            "key.separator": "\t",
            "headers.delimiter": "\t",
            "headers.separator": ",",
            "headers.key.separator": ":",
        }
        separators = {name: properties.get(name, default) for name, default in names.items()}
        marker = properties.get("null.marker")
        _check_separators(separators, marker, parse_key=self._parse_key, parse_headers=self._parse_headers)
        self._key_separator = separators["key.separator"].encode()
        self._headers_delimiter = separators["headers.delimiter"].encode()
        self._headers_separator = separators["headers.separator"].encode()
        self._headers_key_separator = separators["headers.key.separator"].encode()
        self._null_marker = None if marker is None else marker.encode()

    def parse(self, line: bytes) -> Line:
        """Parse the next line. Raises ToolError for a missing separator, unless errors are ignored."""
        self.line_number += 1
        if not self._parse_key and not self._parse_headers:
            return Line(None, self._nullable(line), [])
        headers_text: bytes | None = None
        key: bytes | None = None
        rest = line
        if self._parse_headers:
            headers_text, rest = self._cut(line, rest, self._headers_delimiter, "headers delimiter")
        if self._parse_key:
            key, rest = self._cut(line, rest, self._key_separator, "key separator")
        headers = []
        if headers_text is not None and headers_text != self._null_marker:
            headers = self._split_headers(headers_text)
        return Line(self._nullable(key), self._nullable(rest), headers)

    def _nullable(self, text: bytes | None) -> bytes | None:
        return None if text is None or text == self._null_marker else text

    def _cut(self, line: bytes, rest: bytes, separator: bytes, name: str) -> tuple[bytes | None, bytes]:
        """The text before a separator and the text after it, or None and the whole text if it is missing."""
        before, found, after = rest.partition(separator)
        if found:
            return before, after
        if self._ignore_error:
            return None, rest
        raise ToolError(f"No {name} found on line number {self.line_number}: '{line.decode('utf-8', 'replace')}'")

    def _split_headers(self, text: bytes) -> list[Header]:
        pairs = text.split(self._headers_separator)
        while len(pairs) > 1 and not pairs[-1]:
            pairs.pop()  # Java's split drops trailing empty strings
        return [self._split_header(pair) for pair in pairs]

    def _split_header(self, pair: bytes) -> Header:
        key, found, value = pair.partition(self._headers_key_separator)
        if not found:
            if self._ignore_error:
                return pair.decode("utf-8", "replace"), None
            raise ToolError(
                f"No header key separator found in pair '{pair.decode('utf-8', 'replace')}' "
                f"on line number {self.line_number}"
            )
        if key == self._null_marker:
            raise ToolError(
                f"Header keys should not be equal to the null marker '{key.decode('utf-8', 'replace')}' "
                "as they can't be null"
            )
        return key.decode("utf-8", "replace"), self._nullable(value)


def _flag(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "false").strip().lower() == "true"


def _check_separators(
    separators: Mapping[str, str], marker: str | None, *, parse_key: bool, parse_headers: bool
) -> None:
    pairs = []
    if parse_headers:
        pairs += [
            ("headers.delimiter", "headers.separator"),
            ("headers.delimiter", "headers.key.separator"),
            ("headers.separator", "headers.key.separator"),
        ]
    for one, other in pairs:
        if separators[one] == separators[other]:
            raise ToolError(f"{one} and {other} may not be equal")
    in_use = ["key.separator"] if parse_key else []
    if parse_headers:
        in_use += ["headers.separator", "headers.delimiter", "headers.key.separator"]
    for name in in_use:
        if marker is not None and separators[name] == marker:
            raise ToolError(f"null.marker and {name} may not be equal")


_CHUNK_BYTES = 65_536


async def read_lines(before_waiting: Callable[[], None] | None = None) -> AsyncIterator[bytes]:
    """The lines of standard input, without line ends; calls `before_waiting` before each wait."""
    descriptor = sys.stdin.fileno()
    rest = b""
    while True:
        if before_waiting is not None:
            before_waiting()
        chunk = await _read(descriptor)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


async def _read(descriptor: int) -> bytes:
    """Read the available bytes, at least one; empty at the end of the input."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        # Read in the callback, where the selector has just reported data: a later read could block.
        loop.remove_reader(descriptor)
        if not arrived.done():
            arrived.set_result(os.read(descriptor, _CHUNK_BYTES))

    try:
        loop.add_reader(descriptor, read)
    except PermissionError:
        return os.read(descriptor, _CHUNK_BYTES)  # a file: its reads do not block for long
    try:
        return await arrived
    finally:
        loop.remove_reader(descriptor)
