"""Where keys and tokens come from: URLs that are checked before anybody asks there (Kafka's `ConfigurationUtils`)."""

from __future__ import annotations

from typing import Final

from config.definitions import ConfigError
from config.keys_odradek import ALLOWED_URLS

_SCHEMES: Final = "it must begin with https:// or file:/, or with http:// for this machine alone"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def allowed_urls(text: str) -> frozenset[str]:
    """The URLs in a list."""
    return frozenset(each.strip() for each in text.split(",") if each.strip())


def checked_url(name: str, url: str, allowed: frozenset[str] | None) -> str:
    """`url`, the value of the key `name`, if one may ask there. An address of the network has to be one of `allowed`,
    letter by letter as in Kafka; None allows each.

    Raises ConfigError.
    """
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(name, "[hidden]", f"it is not a URL: {error}") from error
    if parts.username is not None or parts.password is not None:
        raise ConfigError(name, "[hidden]", "it must not have a user or a password")
    if any(each <= " " or each > "~" for each in url):
        raise ConfigError(name, url, "it must have letters of ASCII alone, and no blanks")
    if parts.scheme == "file":
        if host or not parts.path.startswith("/"):
            raise ConfigError(name, url, "a file: URL must have the whole path, such as file:/etc/keys.json")
        return url
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)):
        raise ConfigError(name, url, _SCHEMES)
    if allowed is not None and url not in allowed:
        listed = ", ".join(sorted(allowed)) or "it names none"
        raise ConfigError(name, url, f"it must be one of those that {ALLOWED_URLS} names: {listed}")
    return url


def file_path(url: str) -> str:
    """The path that a file: URL names."""
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(url).path)
