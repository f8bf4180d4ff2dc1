"""A verdict on every key of a server.properties: supported, without effect, unknown, refused or invalid."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from config.broker_config import ELSEWHERE_KEYS, BrokerConfig
from config.broker_keys import BROKER_KEYS, declared_key
from config.definitions import ConfigError, RefusedKeyError
from config.properties import examine, is_provider_key
from config.topic_config import BROKER_SYNONYMS
from protocol.errors import detached
from security.openssl_files import read_bytes

if TYPE_CHECKING:
    from security.tls import AnySsl

NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})


class Verdict(Enum):
    """The verdict on one key, from best to worst."""

    SUPPORTED = "supported"
    WITHOUT_EFFECT = "without effect"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    BAD = "bad"

    @property
    def stops_the_start(self) -> bool:
        """Whether such a key prevents the start of a broker."""
        return self in {Verdict.REFUSED, Verdict.BAD}


class KeyReview(NamedTuple):
    """The verdict on one key. Secret values are hidden; `note` gives the reason and what to do, if necessary."""

    verdict: Verdict
    key: str
    value: str
    note: str = ""


def review(properties: Mapping[str, str], environment: Mapping[str, str] = NO_VARIABLES) -> list[KeyReview]:
    """A finding for each key that is set, in the file's order, then for missing required keys. References are shown
    unresolved, but their values are checked.
    """
    resolved, unresolved = examine(properties, environment, read_bytes)
    config, errors = BrokerConfig.examine(resolved)
    errors = unresolved + errors + ([] if errors else store_errors(config))
    remarks = config.remarks()
    worst: dict[str, list[ConfigError]] = {}
    for error in errors:
        worst.setdefault(error.name, []).append(error)
    without_effect = set(config.without_effect())
    findings = []
    for key, text in properties.items():
        declared = declared_key(key)
        hidden = declared.is_sensitive if declared is not None else _is_secret(key)
        value = "[hidden]" if hidden else text
        if config.single_node is not None and key in config.single_node.unused_keys:
            note = "one KRaft node is read as one broker with a tree of its own"
            findings.append(KeyReview(Verdict.WITHOUT_EFFECT, key, value, note))
        elif key in worst:
            findings.append(_problem(key, value, worst.pop(key)))
        elif key in without_effect:
            findings.append(KeyReview(Verdict.WITHOUT_EFFECT, key, value, ELSEWHERE_KEYS.get(key, "")))
        elif declared is None and not is_provider_key(key):
            findings.append(KeyReview(Verdict.UNKNOWN, key, value, suggestion(key)))
        else:
            findings.append(KeyReview(Verdict.SUPPORTED, key, value, remarks.get(key, "")))
    for key, problems in worst.items():
        if key in config.originals:  # broker.id and node.id are synonyms.
            continue
        findings.append(_problem(key, "(not set)", problems))
    return findings


def store_errors(config: BrokerConfig) -> list[ConfigError]:
    """Errors in TLS stores that would prevent the start, or the connection to ZooKeeper, on this host."""
    channel = config.inter_broker_channel
    wanted: list[AnySsl | None] = [*config.ssl.values(), None if channel is None else channel.ssl, config.zookeeper_tls]
    if not any(wanted):
        return []
    from security.tls import TlsLoader

    loader = TlsLoader()
    errors: dict[str, ConfigError] = {}
    for each in wanted:
        try:
            if each is not None:
                loader.load(each)
        except ConfigError as error:
            errors.setdefault(error.name, detached(error))
    return list(errors.values())


def suggestion(key: str) -> str:
    """A hint at the key that was probably meant, or an empty string."""
    if key in BROKER_SYNONYMS:
        return f"a topic's key; the broker's default for it is {BROKER_SYNONYMS[key][0]}"
    close = difflib.get_close_matches(key, BROKER_KEYS, n=1, cutoff=0.8)
    return f"did you mean {close[0]}?" if close else ""


def _problem(key: str, value: str, errors: list[ConfigError]) -> KeyReview:
    refused = [error for error in errors if isinstance(error, RefusedKeyError)]
    verdict = Verdict.REFUSED if refused else Verdict.BAD
    return KeyReview(verdict, key, value, "; ".join(error.reason or str(error) for error in errors))


def _is_secret(key: str) -> bool:
    return any(word in key for word in ("password", "secret", "jaas"))
