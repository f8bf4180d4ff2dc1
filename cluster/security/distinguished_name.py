"""The subject of a certificate as Java writes it (`X500Principal.getName`, RFC 2253), which Kafka's rules match."""

from __future__ import annotations

from typing import Final, NamedTuple

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ENCODINGS: Final = {12: "utf-8", 19: "utf-8", 20: "utf-8", 22: "utf-8", 27: "utf-8", 30: "utf-16-be"}
"""Tags of the types that are text to Java. T61String is read as UTF-8 is, as Java does."""
_ESCAPED: Final = ',=+<>#;"\\'
_VERSION_TAG: Final = 0xA0


class _Element(NamedTuple):
    tag: int
    content: bytes
    encoded: bytes


def subject_of(certificate: bytes) -> str:
    """The subject of a DER certificate, the most specific part first. Raises ValueError for other bytes."""
    body = _elements(_elements(certificate, 1)[0].content, 1)[0]
    fields = _elements(body.content, 6)
    # version (optional), serial number, algorithm, issuer, validity, subject
    subject = fields[5 if fields[0].tag == _VERSION_TAG else 4]
    return ",".join(_relative_name(each.content) for each in reversed(_elements(subject.content)))


def _relative_name(content: bytes) -> str:
    return "+".join(_attribute(*_elements(each.content, 2)[:2]) for each in _elements(content))


def _attribute(kind: _Element, value: _Element) -> str:
    identifier = _object_identifier(kind.content)
    keyword = _KEYWORDS.get(identifier)
    if keyword is None or value.tag not in _ENCODINGS:
        return f"{keyword or identifier}=#{value.encoded.hex()}"
    return f"{keyword}={_escaped(value.content.decode(_ENCODINGS[value.tag], 'replace'))}"


def _escaped(text: str) -> str:
    begin = len(text) - len(text.lstrip(" \r"))
    end = len(text.rstrip(" \r"))
    parts = []
    for at, letter in enumerate(text):
        if letter == "\0":
            parts.append("\\00")
        elif letter in _ESCAPED or not begin <= at < end:
            parts.append(f"\\{letter}")
        else:
            parts.append(letter)
    return "".join(parts)


def _object_identifier(content: bytes) -> str:
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise ValueError("an object identifier is empty")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _elements(encoded: bytes, at_least: int = 0) -> list[_Element]:
    """The elements that follow one another (ITU-T X.690, definite lengths, tags of one byte).

    Raises ValueError for fewer than `at_least`.
    """
    found, at = [], 0
    while at < len(encoded):
        if at + 2 > len(encoded):
            raise ValueError("an element is cut short")
        size, begin = encoded[at + 1], at + 2
        if size >= 0x80:
            begin += size & 0x7F
            size = int.from_bytes(encoded[at + 2 : begin], "big")
        if begin + size > len(encoded):
            raise ValueError("an element is cut short")
        found.append(_Element(encoded[at], encoded[begin : begin + size], encoded[at : begin + size]))
        at = begin + size
    if len(found) < at_least:
        raise ValueError("not a certificate")
    return found
