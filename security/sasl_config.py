"""SASL of one listener, configured by the keys sasl.* (Kafka classes `BrokerSecurityConfigs`, `JaasContext`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from config.broker_keys import ALLOWED_URLS
from config.definitions import ConfigError, ConfigKey, Value
from security.jaas import MODULES, parse_module
from security.kerberos_login import KerberosConfig, KerberosLogin, client_login, keytab_login
from security.oauth import (
    LOGIN_HANDLER_KEY,
    MECHANISM,
    SERVER_HANDLER_KEY,
    FindKey,
    TokenLogin,
    TokenRules,
    UnsecuredRules,
    allowed_urls,
    parse_token_login,
    parse_token_rules,
)
from security.principals import ShortNames
from security.stores import SslKeys
from security.tls import ClientSsl, parse_client_ssl

MECHANISMS: Final = ("GSSAPI", "OAUTHBEARER", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_USER: Final = "user_"
_EXAMPLES: Final = {
    "PLAIN": 'user_alice="password"',
    "GSSAPI": 'useKeyTab=true storeKey=true keyTab="/etc/kafka.keytab" principal="kafka/host@REALM"',
}
"""Required options of login modules."""
_OF_MECHANISM: Final = re.compile(
    r"(.+)\.(sasl\.jaas\.config|connections\.max\.reauth\.ms|sasl\.(login|server)\.callback\.handler\.class)\Z"
)


class SaslConfig(NamedTuple):
    """SASL of one listener. `plain_users` maps users to passwords."""

    mechanisms: tuple[str, ...]
    plain_users: Mapping[str, str]
    max_receive_bytes: int
    max_reauth_ms: Mapping[str, int]
    """For each mechanism, how long an authentication is valid; 0 for unlimited."""
    kerberos: KerberosConfig | None = None
    """Set if GSSAPI is among the mechanisms."""
    tokens: TokenRules | UnsecuredRules | None = None
    """Set if OAUTHBEARER is among the mechanisms."""


class Login(NamedTuple):
    """A client's identity. With `has_token`, these are a delegation token's id and HMAC."""

    mechanism: str
    username: str
    password: str
    has_token: bool = False

    def __repr__(self) -> str:
        return f"Login({self.mechanism}, {self.username})"


def parse_sasl(
    listener: str, values: Mapping[str, Value], originals: Mapping[str, str], keys: Mapping[str, ConfigKey]
) -> SaslConfig:
    """SASL of `listener`. Raises ConfigError."""
    prefix = f"listener.name.{listener.lower()}."
    find = _finder((prefix,), values, originals, keys)
    name, mechanisms = find("sasl.enabled.mechanisms")
    size = find("sasl.server.max.receive.size")[1]
    if not isinstance(mechanisms, tuple) or not mechanisms or not set(mechanisms) <= set(MECHANISMS):
        raise ConfigError(name, mechanisms, f"listener {listener} needs some of: {', '.join(MECHANISMS)}")
    _check_mechanisms(prefix, mechanisms, originals)
    plain_users: Mapping[str, str] = {}
    kerberos: KerberosConfig | None = None
    tokens: TokenRules | UnsecuredRules | None = None
    reauth_ms = {}
    for mechanism in mechanisms:
        find = _finder(_prefixes(prefix, mechanism), values, originals, keys)
        limit_ms = find("connections.max.reauth.ms")[1]
        reauth_ms[mechanism] = limit_ms if isinstance(limit_ms, int) else 0
        name = f"{prefix}{mechanism.lower()}.sasl.jaas.config"
        options = _login_options(name, mechanism, originals.get(name))
        if mechanism == "PLAIN":
            users = {each.removeprefix(_USER): word for each, word in options.items() if each.startswith(_USER)}
            plain_users = _checked(name, users)
        elif mechanism == "GSSAPI":
            service = find("sasl.kerberos.service.name")[1]
            rules_name, rules = find("sasl.kerberos.principal.to.local.rules")
            names = ShortNames.parse(rules_name, rules if isinstance(rules, tuple) else ())
            kerberos = KerberosConfig(keytab_login(name, options, service), names)
        elif mechanism == MECHANISM:
            handler = _handler(prefix, SERVER_HANDLER_KEY, originals)
            allowed = allowed_urls(originals.get(ALLOWED_URLS, ""))
            tokens = parse_token_rules(find, handler, (name, options), allowed, _jaas_tls(options, keys))
    return SaslConfig(mechanisms, plain_users, size if isinstance(size, int) else 0, reauth_ms, kerberos, tokens)


def login_of(name: str, mechanism: str, text: str | None, service_name: Value = None) -> Login | KerberosLogin:
    """The login in `text`, the value of the key `name`. `service_name` is sasl.kerberos.service.name. Raises
    ConfigError.
    """
    if mechanism not in MODULES:
        raise ConfigError(name, "[hidden]", f"the mechanism must be one of: {', '.join(MECHANISMS)}")
    if mechanism == "GSSAPI":
        return client_login(name, _login_options(name, mechanism, text), service_name)
    example = f'{MODULES[mechanism]} required username="alice" password="...";'
    if not text:
        raise ConfigError(name, None, f"it must look like {example}")
    options = _login_options(name, mechanism, text)
    username, password = options.get("username"), options.get("password")
    if not username or not password:
        raise ConfigError(name, "[hidden]", f"it needs a user and its password: {example}")
    has_token = mechanism != "PLAIN" and options.get("tokenauth", "").lower() == "true"
    return Login(mechanism, username, password, has_token)


def broker_login(
    listener: str,
    mechanism: str,
    values: Mapping[str, Value],
    originals: Mapping[str, str],
    keys: Mapping[str, ConfigKey],
) -> Login | KerberosLogin | TokenLogin:
    """The broker's login for inter-broker connections on `listener`. Raises ConfigError."""
    prefix = f"listener.name.{listener.lower()}."
    name = f"{prefix}{mechanism.lower()}.sasl.jaas.config"
    if mechanism != MECHANISM:
        return login_of(name, mechanism, originals.get(name))
    options = _login_options(name, mechanism, originals.get(name))
    find = _finder(_prefixes(prefix, mechanism), values, originals, keys)
    handler = _handler(prefix, LOGIN_HANDLER_KEY, originals)
    allowed = allowed_urls(originals.get(ALLOWED_URLS, ""))
    return parse_token_login(find, handler, (name, options), allowed, _jaas_tls(options, keys))


def client_token_login(
    properties: Mapping[str, str], values: Mapping[str, Value], keys: Mapping[str, ConfigKey]
) -> TokenLogin:
    """The login of a client with these properties. As in Kafka 3.9, all URLs are allowed unless a list is configured.

    Raises ConfigError.
    """
    name = "sasl.jaas.config"
    options = _login_options(name, MECHANISM, properties.get(name))
    allowed = allowed_urls(properties[ALLOWED_URLS]) if ALLOWED_URLS in properties else None
    handler = LOGIN_HANDLER_KEY, properties.get(LOGIN_HANDLER_KEY)
    tls = _jaas_tls(options, keys)
    return parse_token_login(lambda key: (key, values.get(key)), handler, (name, options), allowed, tls)


def _prefixes(prefix: str, mechanism: str) -> tuple[str, str]:
    """The prefixes of a mechanism on the listener with `prefix`, in order of precedence."""
    return f"{prefix}{mechanism.lower()}.", prefix


def _finder(
    prefixes: tuple[str, ...], values: Mapping[str, Value], originals: Mapping[str, str], keys: Mapping[str, ConfigKey]
) -> FindKey:
    """Return a function that finds a key under the first of the prefixes that sets it."""

    def find(key: str) -> tuple[str, Value]:
        for name in (each + key for each in prefixes):
            if name in originals:
                return name, keys[key]._replace(name=name).parse(originals[name])
        return key, values.get(key)

    return find


def _handler(prefix: str, key: str, originals: Mapping[str, str]) -> tuple[str, str | None]:
    name = f"{prefix}{MECHANISM.lower()}.{key}"
    return name, originals.get(name, "").strip() or None


def _jaas_tls(options: Mapping[str, str], keys: Mapping[str, ConfigKey]) -> ClientSsl | None:
    """TLS for connections to the token issuer, configured by options of the login module."""
    given = {name: value for name, value in options.items() if name.startswith("ssl.") and name in keys}
    if not given:
        return None
    values = {name: key.default for name, key in keys.items()}
    values |= {name: keys[name].parse(value) for name, value in given.items()}
    return parse_client_ssl(SslKeys("", values, given, keys))


def _check_mechanisms(prefix: str, mechanisms: tuple[str, ...], originals: Mapping[str, str]) -> None:
    """A key for a disabled mechanism would protect nothing; its author must have meant another one."""
    for name in originals:
        if name.startswith(prefix) and (found := _OF_MECHANISM.match(name, len(prefix))):
            allowed = [each.lower() for each in mechanisms]
            if found[1] not in allowed:
                reason = f"{found[1]} is not a mechanism of the listener; allowed: {', '.join(allowed)}"
                raise ConfigError(name, "[hidden]", reason)


def _login_options(name: str, mechanism: str, text: str | None) -> Mapping[str, str]:
    """The options of the mechanism's login module. SCRAM does not require it, since its users are in the coordination
    tree.
    """
    if text is None:
        if mechanism not in _EXAMPLES:
            return {}
        raise ConfigError(name, None, f"it must look like {MODULES[mechanism]} required {_EXAMPLES[mechanism]};")
    module = parse_module(text, lambda reason: ConfigError(name, "[hidden]", reason))
    if module.class_name != MODULES[mechanism]:
        raise ConfigError(name, "[hidden]", f"{mechanism} needs the login module {MODULES[mechanism]}")
    return module.options


def _checked(name: str, users: Mapping[str, str]) -> Mapping[str, str]:
    if not users:
        raise ConfigError(name, "[hidden]", 'it must have users, such as user_alice="password"')
    for user, password in users.items():
        if not user or not password:
            raise ConfigError(name, "[hidden]", f"the user {user!r} needs a name and a password")
    return users
