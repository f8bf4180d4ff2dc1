"""A KRaft configuration for a single node, which is read as a single broker with a built-in coordination tree.

The controller's keys then have no effect, and its listeners are not opened. A quorum of several nodes is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Final, NamedTuple

from config.definitions import RefusedKeyError
from config.listeners import split_csv
from security.authorization import ACL_AUTHORIZER, CLASS_NAME

ROLES: Final = "process.roles"
_STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_CONTROLLERS: Final = "controller.listener.names"
_MEMBERS: Final = ("controller.quorum.voters", "controller.quorum.bootstrap.servers")
_UNUSED: Final = (ROLES, _CONTROLLERS, *_MEMBERS, "early.start.listeners", "sasl.mechanism.controller.protocol")
SEVERAL_NODES: Final = (
    "only a single node with both roles is read, as one broker; for several, set zookeeper.connect in place of the "
    "KRaft keys (`odradek cluster start --brokers 3` shows it)"
)


class SingleNode(NamedTuple):
    """The unused part of a KRaft configuration: keys and listener names."""

    unused_keys: tuple[str, ...]
    controller_listeners: tuple[str, ...]

    def __str__(self) -> str:
        """The message for the log, in one line."""
        listeners = ", ".join(self.controller_listeners) or "none"
        return (
            "process.roles=broker,controller is read as one broker with a coordination tree of its own, in place of "
            f"KRaft's metadata log; controller listeners that are not opened: {listeners}"
        )


def check_single_node(originals: Mapping[str, str]) -> None:
    """Raise RefusedKeyError for a KRaft quorum of several nodes."""
    roles = split_csv(originals.get(ROLES, ""))
    if not roles:
        return
    if set(roles) != {"broker", "controller"}:
        raise RefusedKeyError(ROLES, originals[ROLES], SEVERAL_NODES)
    for name in _MEMBERS:
        if len(split_csv(originals.get(name, ""))) > 1:
            raise RefusedKeyError(name, originals[name], SEVERAL_NODES)
    if originals.get("zookeeper.connect"):
        reason = "process.roles is for a node without ZooKeeper; remove one of the two"
        raise RefusedKeyError("zookeeper.connect", originals["zookeeper.connect"], reason)
    voter = next(iter(split_csv(originals.get(_MEMBERS[0], ""))), "")
    node_id = originals.get("node.id", "").strip()
    if voter and node_id and voter.partition("@")[0] != node_id:
        reason = f"the one voter has to be this node, node.id={node_id}"
        raise RefusedKeyError(_MEMBERS[0], originals[_MEMBERS[0]], reason)


def as_broker_alone(originals: MutableMapping[str, str]) -> SingleNode | None:
    """Convert the configuration of a single KRaft node in place into that of a single broker. Returns None, without a
    change, for other configurations.
    """
    try:
        check_single_node(originals)
    except RefusedKeyError:
        return None
    if not split_csv(originals.get(ROLES, "")):
        return None
    controllers = tuple(name.upper() for name in split_csv(originals.get(_CONTROLLERS, "")))
    prefixes = tuple(f"listener.name.{name.lower()}." for name in controllers)
    unused = tuple(name for name in originals if name in _UNUSED or name.startswith(prefixes))
    for name in unused:
        del originals[name]
    for name in ("listeners", "advertised.listeners"):
        if name in originals:
            endpoints = split_csv(originals[name])
            kept = [each for each in endpoints if each.partition("://")[0].strip().upper() not in controllers]
            originals[name] = ",".join(kept)
    if originals.get("advertised.listeners") == "":
        del originals["advertised.listeners"]
    if originals.get(CLASS_NAME) == _STANDARD_AUTHORIZER:
        originals[CLASS_NAME] = ACL_AUTHORIZER
    return SingleNode(unused, controllers)
