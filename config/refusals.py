"""Keys that ask for security or durability that is not there: they stop the start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from config.broker_keys import BROKER_KEYS, LISTENER_KEY, declared_key
from config.definitions import ConfigError, RefusedKeyError, Value
from config.listeners import EndPoint
from config.vocabulary import NO_KRAFT, NO_OTHER_ACLS
from protocol.errors import detached

_PATTERNS = (
    # Keys without a declaration of their own that would change who may do what; the last word: whether to show a value.
    (re.compile(r"authorizer\.zookeeper\..*"), NO_OTHER_ACLS, True),
    (
        re.compile(r"sasl\.jaas\.config\Z"),
        "name the listener and the mechanism: listener.name.NAME.MECHANISM.sasl.jaas.config",
        False,
    ),
    (
        re.compile(r"(?!listener\.name\.[^.]+\.oauthbearer\.)(.*\.)?sasl\.(login|server)\.callback\.handler\.class\Z"),
        "it is for the mechanism OAUTHBEARER of a listener: listener.name.NAME.oauthbearer.sasl...",
        True,
    ),
)
_SASL_KEY = re.compile(r"(.*\.)?(sasl\..*|connections\.max\.reauth\.ms)\Z")


class Configuration(Protocol):
    """A BrokerConfig as it is judged."""

    @property
    def originals(self) -> Mapping[str, str]: ...

    @property
    def values(self) -> Mapping[str, Value]: ...

    @property
    def listeners(self) -> Sequence[EndPoint]: ...


def refusals(config: Configuration) -> list[ConfigError]:
    """An error for each set key about security, durability or KRaft that is refused; `process.roles` first."""
    errors: list[ConfigError] = []
    if "process.roles" in config.originals:
        from config.kraft import check_single_node

        try:
            check_single_node(config.originals)
        except RefusedKeyError as error:
            errors.append(detached(error))
    for name in sorted(config.originals, key=lambda name: name != "process.roles"):
        try:
            check_promise(name, config)
        except RefusedKeyError as error:
            if not (errors and error.reason == NO_KRAFT):  # what is wrong with a quorum of several is said once
                errors.append(detached(error))
        except ConfigError:
            continue  # A bad value for a listener's key; whoever needs it says so.
    return errors


def check_promise(name: str, config: Configuration) -> None:
    """Raise RefusedKeyError when `name` is set in `config` to something about security or durability we do not have."""
    text = config.originals.get(name)
    for pattern, refusal, shown in _PATTERNS:
        if pattern.match(name):
            raise RefusedKeyError(name, text if shown else "[hidden]", refusal)
    declared = declared_key(name)
    if declared is None:
        return
    _check_listener(name, config)
    if not declared.refusal:
        return
    value = config.values[name] if name in BROKER_KEYS else declared.parse(text)
    if value not in (declared.default, "", ()):
        raise RefusedKeyError(name, "[hidden]" if declared.is_sensitive else text, declared.refusal)


def _check_listener(name: str, config: Configuration) -> None:
    """A key about the security of a listener that does not exist protects nothing: its author meant another one."""
    found = LISTENER_KEY.match(name)
    if found is None:
        return
    protocols = {each.listener_name.lower(): each.security_protocol for each in config.listeners}
    if found[2].startswith("ssl."):
        kind, names = "TLS", [each for each, protocol in protocols.items() if protocol.endswith("SSL")]
    elif _SASL_KEY.match(found[2]):
        kind, names = "SASL", [each for each, protocol in protocols.items() if protocol.startswith("SASL")]
    else:
        return
    if found[1] not in names:
        allowed = ", ".join(f"listener.name.{each}.{found[2]}" for each in names) or f"no listener has {kind}"
        raise RefusedKeyError(name, "[hidden]", f"it is of no listener with {kind}; allowed: {allowed}")
