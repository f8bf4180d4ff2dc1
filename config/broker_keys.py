"""Every key that a broker knows, and the declaration of a key as it is written in a file."""

from __future__ import annotations

import re

from config.definitions import ConfigKey, ConfigKeys, ConfigType, table
from config.keys_cluster import ClusterKeys
from config.keys_coordination import CoordinationKeys
from config.keys_coordinators import CoordinatorKeys
from config.keys_log import LogKeys
from config.keys_network import NetworkKeys
from config.keys_odradek import OdradekKeys
from config.keys_sasl import SaslKeys
from config.keys_security import SecurityKeys
from config.security.authorization import AUTHORIZER_KEYS


class BrokerKeys(
    NetworkKeys, LogKeys, ClusterKeys, CoordinatorKeys, SecurityKeys, SaslKeys, CoordinationKeys, OdradekKeys
):
    """Every key of a broker, as attributes."""


BROKER_KEYS = table(
    key for subject in BrokerKeys.__bases__ if issubclass(subject, ConfigKeys) for key in subject.declared()
)
"""Every key of a broker."""

LISTENER_KEY = re.compile(r"listener\.name\.([^.]*)\.(.+)\Z")
_LISTENER_MECHANISM_KEYS = (
    "sasl.login.callback.handler.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
    "sasl.login.class",
    "sasl.jaas.config",
)


def base_name(listener_key: str) -> str:
    """A listener's key without its mechanism: `plain.sasl.jaas.config` -> `sasl.jaas.config`."""
    return next((key for key in _LISTENER_MECHANISM_KEYS if listener_key.endswith(key)), listener_key)


def declared_key(name: str) -> ConfigKey | None:
    """The declaration of a broker key, also of one with a listener's prefix; None when there is none."""
    declared = BROKER_KEYS.get(name) or AUTHORIZER_KEYS.get(name)
    if declared is None and (match := LISTENER_KEY.match(name)):
        declared = BROKER_KEYS.get(base_name(match[2]))
    return declared


def is_password(name: str) -> bool:
    """Whether a key, with a listener's prefix or without, is that of a password."""
    declared = declared_key(name)
    return declared is not None and declared.type is ConfigType.PASSWORD
