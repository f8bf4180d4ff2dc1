"""Asks a server of the web for one thing: the keys of an issuer, or a token. To be run off the event loop.

There are no redirections, no proxies and no cookies: it is asked where the configuration says, and nowhere else.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

from config.security.oauthbearer.urls import file_path
from config.security.secret_files import read_bytes

TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 1 << 20


class WebError(Exception):
    """There is no usable answer; the message never has what was sent. `is_final`: another attempt would not help."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


def fetch(
    url: str,
    context: ssl.SSLContext | None = None,
    *,
    form: str | None = None,
    headers: Mapping[str, str] | None = None,
    connect_timeout_s: float = TIMEOUT_S,
    read_timeout_s: float = TIMEOUT_S,
) -> bytes:
    """The content of `url`, a file or a page, which is asked with POST when there is a `form`. Raises WebError."""
    if url.startswith("file:"):
        try:
            return read_bytes(file_path(url))
        except OSError as error:
            raise WebError(f"{url} cannot be read: {error.strerror}") from error
    import http.client
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        used = context or ssl.create_default_context()
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=connect_timeout_s, context=used)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=connect_timeout_s)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.connect()
        connection.sock.settimeout(read_timeout_s)
        given = {"Accept": "application/json", "Connection": "close", **(headers or {})}
        connection.request("GET" if form is None else "POST", target, form, given)
        with connection.getresponse() as answer:
            if answer.status not in (200, 201):
                # Kafka's clients do not try again after these either.
                is_final = 400 <= answer.status < 500 and answer.status not in (408, 429)
                raise WebError(f"{url} answers with HTTP status {answer.status}", is_final=is_final)
            content = answer.read(MAX_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        raise WebError(f"{url} cannot be asked: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if len(content) > MAX_BYTES:
        raise WebError(f"{url} answers with more than {MAX_BYTES} bytes")
    return content
