"""Frames and requests that no client should send: the answers, and when the connection is closed."""

from __future__ import annotations

import struct

from protocol.messages.api_versions import ApiVersionsRequest
from protocol.messages.metadata import MetadataRequest
from tests.kit.wire_client import ConnectionClosed
from tests.parity.subject import PATIENCE_S, Subject, scenario

METADATA, API_VERSIONS = 3, 18


def closed_after_frame(b: Subject, label: str, frame: bytes) -> None:
    """Send a frame's content on a new connection, and note whether the broker closes it or answers."""
    with b.another() as connection:
        connection.send_frame(frame)
        b.note(label, connection.is_closed(PATIENCE_S))


def closed_after_bytes(b: Subject, label: str, data: bytes) -> None:
    """Send bytes on a new connection, and note whether the broker closes it."""
    with b.another() as connection:
        connection.send_bytes(data)
        b.note(label, connection.is_closed(PATIENCE_S))


def header(api_key: int, version: int, client_id: bytes = b"\0\1x", *, tags: bytes = b"") -> bytes:
    """A request header."""
    return struct.pack(">hhi", api_key, version, 1) + client_id + tags


@scenario
def unknown_apis(b: Subject) -> None:
    for api_key in (-1, 93, 1000, 32767):
        closed_after_frame(b, f"api {api_key}", header(api_key, 0))


@scenario
def apis_of_other_listeners(b: Subject) -> None:
    for api_key in (52, 53, 54, 59, 62, 63, 70, 82):
        closed_after_frame(b, f"api {api_key}", header(api_key, 0, tags=b"\0"))


@scenario
def unknown_versions(b: Subject) -> None:
    for api_key, version in ((0, 12), (1, 18), (3, 13), (3, -1), (11, 10), (19, 8)):
        closed_after_frame(b, f"api {api_key} version {version}", header(api_key, version, tags=b"\0"))


@scenario
def negative_api_versions_version(b: Subject) -> None:
    with b.another() as connection:
        connection.send_body(API_VERSIONS, -1, b"", header_version=1)
        b.note("answer", connection.receive(ApiVersionsRequest, 0))


@scenario
def empty_frame(b: Subject) -> None:
    closed_after_frame(b, "no bytes", b"")


@scenario
def short_headers(b: Subject) -> None:
    whole = header(METADATA, 12, tags=b"\0")
    for size in range(1, len(whole)):
        closed_after_frame(b, f"{size} bytes", whole[:size])


@scenario
def negative_frame_length(b: Subject) -> None:
    for length in (-1, -(2**31)):
        closed_after_bytes(b, f"length {length}", struct.pack(">i", length))


@scenario
def frame_beyond_the_limit(b: Subject) -> None:
    for length in (104_857_601, 2**31 - 1):
        closed_after_bytes(b, f"length {length}", struct.pack(">i", length))


@scenario
def http_request(b: Subject) -> None:
    closed_after_bytes(b, "GET", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


@scenario
def tls_hello(b: Subject) -> None:
    closed_after_bytes(b, "hello", bytes.fromhex("160301020001000001fc0303") + bytes(500))


@scenario
def body_cut_short(b: Subject) -> None:
    body = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="some-topic")]).to_bytes(12)
    for size in (0, 1, 5, len(body) - 1):
        closed_after_frame(b, f"{size} bytes", header(METADATA, 12, tags=b"\0") + body[:size])


@scenario
def bytes_behind_the_body(b: Subject) -> None:
    body = MetadataRequest(topics=[]).to_bytes(12)
    with b.another() as connection:
        connection.send_body(METADATA, 12, body + b"extra")
        b.note("closed", connection.is_closed(PATIENCE_S))


@scenario
def array_length_that_lies(b: Subject) -> None:
    for count in (b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x10", b"\x64"):
        closed_after_frame(b, count.hex(), header(METADATA, 12, tags=b"\0") + count)


@scenario
def negative_array_length(b: Subject) -> None:
    closed_after_frame(b, "-2", header(METADATA, 8) + struct.pack(">i", -2) + b"\1\0\0")


@scenario
def null_where_null_is_not_allowed(b: Subject) -> None:
    # Metadata v8: a topic whose name is null.
    closed_after_frame(b, "name", header(METADATA, 8) + struct.pack(">ih", 1, -1) + b"\1\0\0")


@scenario
def text_that_is_not_utf_8(b: Subject) -> None:
    with b.another() as connection:
        connection.send_body(METADATA, 8, struct.pack(">ih", 1, 2) + b"\xff\xfe" + b"\0\0\0")
        try:
            b.note("error", connection.receive(MetadataRequest, 8).topics[0].error_code)
        except ConnectionClosed:
            b.note("error", "<connection closed>")


@scenario
def null_client_id(b: Subject) -> None:
    with b.another(None) as connection:
        b.ask(MetadataRequest(topics=[]), 12, connection)
        b.ask(MetadataRequest(topics=[]), 1, connection)


@scenario
def unknown_tagged_fields(b: Subject) -> None:
    body = MetadataRequest(topics=[], allow_auto_topic_creation=False).to_bytes(12)
    # The body ends with its tagged fields: none. Here it has number 9 with two bytes instead.
    with b.another() as connection:
        connection.send_body(METADATA, 12, body[:-1] + b"\x01\x09\x02\xab\xcd")
        b.note("answer", connection.receive(MetadataRequest, 12))


@scenario
def tagged_fields_in_the_header(b: Subject) -> None:
    body = MetadataRequest(topics=[], allow_auto_topic_creation=False).to_bytes(12)
    with b.another() as connection:
        connection.send_frame(header(METADATA, 12, tags=b"\x01\x05\x01\xff") + body)
        b.note("answer", connection.receive(MetadataRequest, 12))


@scenario
def many_requests_before_the_first_answer(b: Subject) -> None:
    with b.another() as connection:
        for _ in range(50):
            connection.send(MetadataRequest(topics=[]), 12)
        answers = [connection.receive_frame() for _ in range(50)]
        b.note("in order", [struct.unpack_from(">i", answer)[0] for answer in answers] == list(range(1, 51)))


@scenario
def frame_in_single_bytes(b: Subject) -> None:
    body = MetadataRequest(topics=[]).to_bytes(12)
    frame = header(METADATA, 12, tags=b"\0") + body
    with b.another() as connection:
        for byte in struct.pack(">i", len(frame)) + frame:
            connection.send_bytes(bytes([byte]))
        b.note("answer", connection.receive(MetadataRequest, 12))
