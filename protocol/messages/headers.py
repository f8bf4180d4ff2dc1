"""The headers of requests and responses."""

from __future__ import annotations

from protocol.wire.schema import Message, field, int16, int32, nullable_string


class RequestHeader(Message, versions="0-2", flexible="2+"):
    """The header of every request; `ApiKey.request_header_version` is its version.

    - v1: client id
    - v2: tagged fields; the client id keeps its old encoding, so that a broker can read it before it knows the rest
    """

    request_api_key: int16
    request_api_version: int16
    correlation_id: int32
    client_id: nullable_string = field("1+", default=None, ignorable=True, always_classic=True)


class ResponseHeader(Message, versions="0-1", flexible="1+"):
    """The header of every response; `ApiKey.response_header_version` is its version.

    - v1: tagged fields
    """

    correlation_id: int32
