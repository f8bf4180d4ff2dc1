"""The client side of SASL/OAUTHBEARER: the sources of its token (Kafka classes `OAuthBearerLoginCallbackHandler`,
`OAuthBearerUnsecuredLoginCallbackHandler`), allowed URLs (Kafka class `ConfigurationUtils`), and the HTTP request for a
token or for an issuer's keys. The request runs off the event loop; it does not use redirects, proxies or cookies.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from config.broker_keys import ALLOWED_URLS
from config.definitions import ConfigError, ConfigKey, ConfigType, Value
from security.openssl_files import read_bytes
from security.tls import ClientSsl

_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer."
_SCHEMES: Final = "it must begin with https:// or file:/, or with http:// for this machine alone"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def allowed_urls(text: str) -> frozenset[str]:
    """The URLs in a comma-separated list."""
    return frozenset(each.strip() for each in text.split(",") if each.strip())


def checked_url(name: str, url: str, allowed: frozenset[str] | None) -> str:
    """`url`, the value of the key `name`, after validation. A network URL must be one of `allowed`, compared as strings
    like in Kafka, unless that is None.

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
    """The path in a file: URL."""
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(url).path)


MECHANISM: Final = "OAUTHBEARER"
SERVER_HANDLER_KEY: Final = "sasl.server.callback.handler.class"
_SIGNED_RULES: Final = f"{_PACKAGE}OAuthBearerValidatorCallbackHandler"
_UNSIGNED_RULES: Final = f"{_PACKAGE}internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
_OLD_SIGNED_RULES: Final = f"{_PACKAGE}secured.OAuthBearerValidatorCallbackHandler"
_RULE_OPTION: Final = "unsecuredValidator"

FindKey = Callable[[str], tuple[str, Value]]
"""Returns the full name and the value of a key, with the applicable prefix."""


class TokenRules(NamedTuple):
    """Rules for signed tokens. `keys_url` returns the issuer's keys; `tls` is for its connection, None for the system's
    authorities.

    `url_name` is the key to name in errors about `keys_url`. Without `issuer`, any is accepted. Without `audiences`,
    tokens must not have an audience.
    """

    url_name: str
    keys_url: str
    tls: ClientSsl | None
    audiences: tuple[str, ...]
    issuer: str | None
    skew_s: int
    scope_claim: str
    sub_claim: str
    refresh_ms: int
    retry_ms: int
    retry_max_ms: int


class UnsecuredRules(NamedTuple):
    """Rules for unsigned tokens: for tests."""

    sub_claim: str
    scope_claim: str
    required_scope: tuple[str, ...]
    skew_ms: int


def parse_token_rules(
    find: FindKey,
    handler: tuple[str, str | None],
    module: tuple[str, Mapping[str, str]],
    allowed: frozenset[str],
    tls: ClientSsl | None,
) -> TokenRules | UnsecuredRules:
    """The rules of a listener. `handler` is the name and value of the handler class's key, `module` the name of the
    login module's key and its options; `allowed` are the permitted URLs. Raises ConfigError.
    """
    name, class_name = handler
    if class_name == _UNSIGNED_RULES:
        return _unsecured(*module)
    if class_name not in (_SIGNED_RULES, _OLD_SIGNED_RULES):
        reason = f"it must be {_SIGNED_RULES}, or {_UNSIGNED_RULES} to believe whatever clients say"
        raise ConfigError(name, class_name or None, reason)

    def text(key: str) -> str | None:
        value = find(key)[1]
        return value.strip() or None if isinstance(value, str) else None

    def claim(key: str) -> str:
        found = text(key)
        if found is None:
            raise ConfigError(find(key)[0], "", "it must name a claim")
        return found

    url_name = find("sasl.oauthbearer.jwks.endpoint.url")[0]
    url = text("sasl.oauthbearer.jwks.endpoint.url")
    if url is None:
        raise ConfigError(url_name, None, "it must say where the issuer's keys are, such as https://HOST/keys")
    audiences = find("sasl.oauthbearer.expected.audience")[1]
    retry_name, retry_ms = find("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms")
    if not retry_ms:
        raise ConfigError(retry_name, retry_ms, "Value must be at least 1")
    refresh_name, refresh_ms = find("sasl.oauthbearer.jwks.endpoint.refresh.ms")
    if not isinstance(refresh_ms, int) or refresh_ms < 1000:
        raise ConfigError(refresh_name, refresh_ms, "Value must be at least 1000")
    return TokenRules(
        url_name=url_name,
        keys_url=checked_url(url_name, url, allowed),
        tls=tls,
        audiences=audiences if isinstance(audiences, tuple) else (),
        issuer=text("sasl.oauthbearer.expected.issuer"),
        skew_s=number_of(find, "sasl.oauthbearer.clock.skew.seconds"),
        scope_claim=claim("sasl.oauthbearer.scope.claim.name"),
        sub_claim=claim("sasl.oauthbearer.sub.claim.name"),
        refresh_ms=refresh_ms,
        retry_ms=number_of(find, "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
        retry_max_ms=number_of(find, "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
    )


def number_of(find: FindKey, key: str) -> int:
    """The value of a key that must not be negative. Raises ConfigError."""
    name, value = find(key)
    if not isinstance(value, int) or value < 0:
        raise ConfigError(name, value, "Value must be at least 0")
    return value


def _unsecured(name: str, options: Mapping[str, str]) -> UnsecuredRules:
    skew = options.get(f"{_RULE_OPTION}AllowableClockSkewMs", "").strip() or "0"
    if not (skew.isascii() and skew.isdecimal() and len(skew) < 10):
        raise ConfigError(name, "[hidden]", f"{_RULE_OPTION}AllowableClockSkewMs must be a number of milliseconds")
    return UnsecuredRules(
        sub_claim=options.get(f"{_RULE_OPTION}PrincipalClaimName", "").strip() or "sub",
        scope_claim=options.get(f"{_RULE_OPTION}ScopeClaimName", "").strip() or "scope",
        required_scope=tuple(options.get(f"{_RULE_OPTION}RequiredScope", "").split()),
        skew_ms=int(skew),
    )


LOGIN_HANDLER_KEY: Final = "sasl.login.callback.handler.class"
SECURED: Final = f"{_PACKAGE}OAuthBearerLoginCallbackHandler"
UNSECURED: Final = f"{_PACKAGE}internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
_OLD_NAME: Final = f"{_PACKAGE}secured.OAuthBearerLoginCallbackHandler"
_OPTION: Final = "unsecuredLogin"
URLENCODE: Final = ConfigKey(
    "sasl.oauthbearer.header.urlencode",
    ConfigType.BOOLEAN,
    False,
    "Whether a client's credentials are encoded as in URLs.",
)
"""A client setting that brokers lack (KAFKA-16345)."""
_EXTENSION_NAME: Final = re.compile(r"(?!auth\Z)[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")

ClaimValue = str | float | tuple[str, ...]


class EndpointSource(NamedTuple):
    """A token endpoint for a client's credentials (the grant `client_credentials`)."""

    url: str
    client_id: str
    client_secret: str
    scope: str | None
    encodes_credentials: bool
    """Whether to URL-encode id and secret."""
    tls: ClientSsl | None
    connect_timeout_s: float | None
    read_timeout_s: float | None
    retry_ms: int
    retry_max_ms: int

    def __repr__(self) -> str:
        return f"EndpointSource({self.url}, {self.client_id})"


class FileSource(NamedTuple):
    """A file with a token, which another program must renew in time."""

    url: str


class UnsecuredSource(NamedTuple):
    """Unsigned tokens created by the client itself: for tests."""

    claims: Mapping[str, ClaimValue]
    lifetime_s: int


class Refresh(NamedTuple):
    """When to refresh a token: after `factor` of its lifetime, plus a random part of up to `jitter`."""

    factor: float
    jitter: float
    min_period_s: int
    buffer_s: int


class TokenLogin(NamedTuple):
    """A client's identity. `extensions` are sent with the token (KIP-342)."""

    source: EndpointSource | FileSource | UnsecuredSource
    extensions: Mapping[str, str]
    refresh: Refresh

    @property
    def mechanism(self) -> str:
        """See `security.sasl_config.Login`."""
        return MECHANISM


def parse_token_login(
    find: FindKey,
    handler: tuple[str, str | None],
    module: tuple[str, Mapping[str, str]],
    allowed: frozenset[str] | None,
    tls: ClientSsl | None,
) -> TokenLogin:
    """Parse the login, with the arguments of `parse_token_rules`. Raises ConfigError."""
    name, class_name = handler
    jaas_name, options = module
    if class_name in (SECURED, _OLD_NAME):
        source: EndpointSource | FileSource | UnsecuredSource = _secured(find, jaas_name, options, allowed, tls)
        extensions = _extensions(jaas_name, options, "extension_")
    elif class_name in (UNSECURED, None, ""):
        source = _unsecured_source(jaas_name, options)
        extensions = _extensions(jaas_name, options, f"{_OPTION}Extension_")
    else:
        raise ConfigError(name, class_name, f"it must be {SECURED}, or {UNSECURED} for a token that nobody has signed")
    refresh = Refresh(
        _fraction(find, "sasl.login.refresh.window.factor", 0.5, 1.0),
        _fraction(find, "sasl.login.refresh.window.jitter", 0.0, 0.25),
        number_of(find, "sasl.login.refresh.min.period.seconds"),
        number_of(find, "sasl.login.refresh.buffer.seconds"),
    )
    return TokenLogin(source, extensions, refresh)


def _secured(
    find: FindKey,
    jaas_name: str,
    options: Mapping[str, str],
    allowed: frozenset[str] | None,
    tls: ClientSsl | None,
) -> EndpointSource | FileSource:
    url_name, url = find("sasl.oauthbearer.token.endpoint.url")
    if not isinstance(url, str) or not url.strip():
        raise ConfigError(url_name, None, "it must say where tokens are issued, such as https://HOST/token")
    url = checked_url(url_name, url.strip(), allowed)
    if url.startswith("file:"):
        return FileSource(url)
    client_id, secret = options.get("clientId", "").strip(), options.get("clientSecret", "").strip()
    if not client_id or not secret:
        raise ConfigError(
            jaas_name, "[hidden]", 'it needs the credentials of a client: clientId="..." clientSecret="..."'
        )
    encodes = find(URLENCODE.name)[1] is True
    connect_ms, read_ms = find("sasl.login.connect.timeout.ms")[1], find("sasl.login.read.timeout.ms")[1]
    return EndpointSource(
        url,
        client_id,
        secret,
        options.get("scope", "").strip() or None,
        encodes,
        tls,
        connect_ms / 1000 if isinstance(connect_ms, int) and connect_ms > 0 else None,
        read_ms / 1000 if isinstance(read_ms, int) and read_ms > 0 else None,
        number_of(find, "sasl.login.retry.backoff.ms"),
        number_of(find, "sasl.login.retry.backoff.max.ms"),
    )


def _unsecured_source(jaas_name: str, options: Mapping[str, str]) -> UnsecuredSource:
    """Claims are options such as unsecuredLoginStringClaim_sub; the first character of a list is its separator."""
    claims: dict[str, ClaimValue] = {}
    for option, value in options.items():
        kind, _, claim = option.partition("Claim_")
        if not option.startswith(_OPTION) or not claim or not value:
            continue
        if kind == f"{_OPTION}String":
            claims[claim] = value
        elif kind == f"{_OPTION}Number":
            claims[claim] = _float(jaas_name, option, value)
        elif kind == f"{_OPTION}List":
            claims[claim] = tuple(value[1:].split(value[0]))
    principal = options.get(f"{_OPTION}PrincipalClaimName", "").strip() or "sub"
    if not isinstance(claims.get(principal), str):
        reason = f'it needs a name, {_OPTION}StringClaim_{principal}="alice", or {LOGIN_HANDLER_KEY}={SECURED}'
        raise ConfigError(jaas_name, "[hidden]", reason)
    seconds = options.get(f"{_OPTION}LifetimeSeconds", "").strip() or "3600"
    if not (seconds.isascii() and seconds.isdecimal() and 0 < int(seconds[:10]) < 2**31):
        raise ConfigError(jaas_name, "[hidden]", f"{_OPTION}LifetimeSeconds must be a number of seconds")
    return UnsecuredSource(claims, int(seconds))


def _extensions(jaas_name: str, options: Mapping[str, str], begin: str) -> dict[str, str]:
    found = {name.removeprefix(begin): value for name, value in options.items() if name.startswith(begin)}
    for name, value in found.items():
        if not _EXTENSION_NAME.fullmatch(name):
            raise ConfigError(
                jaas_name, "[hidden]", f"Extension name {name} is invalid: it must have letters, not auth"
            )
        if not _EXTENSION_VALUE.fullmatch(value):
            raise ConfigError(jaas_name, "[hidden]", f"the value of the extension {name} must be printable ASCII")
    return found


def _fraction(find: FindKey, key: str, low: float, high: float) -> float:
    name, value = find(key)
    if not isinstance(value, float) or not low <= value <= high:
        raise ConfigError(name, value, f"Value must be between {low} and {high}")
    return value


def _float(jaas_name: str, option: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not abs(number) < 2**53:
        raise ConfigError(jaas_name, "[hidden]", f"{option} must be a number")
    return number


TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 1 << 20


class WebError(Exception):
    """The request failed. The message never contains anything that was sent. `is_final`: do not retry."""

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
    """The content of `url`, a file or a web page; a `form` is sent with POST. Raises WebError."""
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
                # Kafka's clients do not retry after these either.
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
