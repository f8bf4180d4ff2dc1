"""Quotas in configurations: validation of changes, and filters of entities (Kafka class `ZkAdminManager`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from cluster import znodes
from cluster.quotas.entities import QuotaEntity, entity_of
from config.broker_keys import CLIENT_QUOTA_KEYS, IP_QUOTA_KEYS, SCRAM_KEYS
from config.definitions import INT_MAX, LONG_MAX, ConfigError, ConfigType, parse_value, value_to_text
from protocol.errors import ApiError, ErrorCode
from zookeeper.coordination import Coordination, Delete, NoNodeError, Operation

EXACT, DEFAULT_ONLY, ANY_NAME = range(3)
"""How a component of a filter matches."""

ENTITY_NAMES: Final = {"user": "user", "client-id": "client", "ip": "ip"}
"""Entity types, with their names in Kafka's messages."""
_EPSILON: Final = 1e-6
_HIGHEST: Final = {ConfigType.LONG: LONG_MAX, ConfigType.INT: INT_MAX}


class Component(NamedTuple):
    """One component of a filter. `name` is for EXACT; a null name never matches."""

    kind: str
    match_type: int
    name: str | None


def check_filter(components: Sequence[Component]) -> None:
    """Raise ApiError for a filter that Kafka rejects."""
    for component in components:
        if component.match_type not in {EXACT, DEFAULT_ONLY, ANY_NAME} or (
            component.match_type == EXACT and component.name is None
        ):
            # Kafka fails on these with an unexplained exception.
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"A filter for {component.kind} does not say what it means")
    kinds: set[str] = set()
    for component in components:
        kind = component.kind
        if not kind:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Unexpected empty filter component entity type")
        if kind not in ENTITY_NAMES:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{kind}' not supported")
        if kind in kinds:
            name = ENTITY_NAMES[kind]
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate {name} filter component entity type")
        kinds.add(kind)
    if "ip" in kinds and len(kinds) > 1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination, IP filter component should not be used with user or "
            "clientId filter component.",
        )


def matches(entity: QuotaEntity, components: Iterable[Component], *, strict: bool) -> bool:
    """Whether the filter matches an entity. With `strict`, the components must cover all parts of the entity."""
    parts = entity.parts()
    named = 0
    for kind, match_type, name in components:
        if kind not in parts:
            return False
        named += 1
        if match_type == EXACT and parts[kind] != name:
            return False
        if match_type == DEFAULT_ONLY and parts[kind] is not None:
            return False
    return not strict or named == len(parts)


def shown_quotas(entity: QuotaEntity, config: Mapping[str, str]) -> dict[str, float]:
    """The quotas in an entity's configuration. Raises ApiError UNKNOWN_SERVER_ERROR if a value is not a number."""
    keys = CLIENT_QUOTA_KEYS if entity.ip is None else IP_QUOTA_KEYS
    shown = {}
    for key in config.keys() & keys.keys():
        limit = limit_of(config, key)
        if limit is None:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The quota {key} is not a number: {config[key]}")
        shown[key] = limit
    return dict(sorted(shown.items()))


def limit_of(config: Mapping[str, str], key: str) -> float | None:
    """The configured limit, or None if it is missing or not a number."""
    text = config.get(key)
    if text is None:
        return None
    try:
        value = parse_value(key, ConfigType.DOUBLE, text)
    except ConfigError:
        return None
    assert isinstance(value, float)
    return value


def checked_entity(parts: Mapping[str, str | None]) -> QuotaEntity:
    """The entity of an alteration. Raises ApiError INVALID_REQUEST. IP addresses are not validated."""
    if not parts:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    for kind, name in parts.items():
        if kind not in ENTITY_NAMES:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Empty {kind} not supported")
    if "ip" in parts and len(parts) > 1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Invalid quota entity combination, IP entity should not be used with user/client ID entity.",
        )
    return entity_of(parts)


def altered(
    entity: QuotaEntity, config: Mapping[str, str], changes: Iterable[tuple[str, float | None]]
) -> dict[str, str]:
    """The configuration after changes, with keys set to None removed. Raises ApiError INVALID_REQUEST."""
    keys = CLIENT_QUOTA_KEYS if entity.ip is None else IP_QUOTA_KEYS
    result = dict(config)
    for key, value in changes:
        if value is None:
            result.pop(key, None)
            continue
        declared = keys.get(key)
        if declared is None and not (key in SCRAM_KEYS and entity.user is not None):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {key}")
        if declared is None:
            # Kafka knows the key, but cannot handle a string value.
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{key} is not a number")
        stored = value if declared.type is ConfigType.DOUBLE else _whole(key, declared.type, value)
        result[key] = value_to_text(stored) or ""
    return result


def _whole(key: str, kind: ConfigType, value: float) -> int:
    highest = _HIGHEST[kind]
    # Like Java's cast: NaN becomes 0, and large values saturate.
    whole = 0 if value != value else int(max(min(value + _EPSILON, highest), -highest - 1))  # noqa: PLR0124
    if abs(float(whole) - value) > _EPSILON:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Configuration {key} must be a {kind.name} value")
    return whole


def check_config(entity: QuotaEntity, config: Mapping[str, str]) -> None:
    """Raise ApiError UNKNOWN_SERVER_ERROR for a configuration that Kafka would not store."""
    keys = CLIENT_QUOTA_KEYS if entity.ip is None else IP_QUOTA_KEYS
    for key, text in config.items():
        declared = keys.get(key)
        if declared is None:
            continue
        try:
            declared.parse(text)
        except ConfigError as error:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error


async def removal(coordination: Coordination, path: str, parents: Sequence[str]) -> list[Operation] | None:
    """Return the operations that delete a node with an empty configuration, and those of its `parents` (a user's node,
    and the parent of that user's client ids) without other data or children. Returns None if the node itself has
    children.
    """
    try:
        if (await coordination.children(path))[0]:
            return None
    except NoNodeError:
        return []
    removed: list[Operation] = [Delete(path)]
    if parents:
        user, clients = parents
        if len((await coordination.children(clients))[0]) == 1:
            removed.append(Delete(clients))
            data, stat = await coordination.get(user)
            if stat.num_children == 1 and _holds_nothing(user, data):
                removed.append(Delete(user))
    return removed


def _holds_nothing(path: str, data: bytes | None) -> bool:
    try:
        return not znodes.decode_config(path, data)
    except znodes.ZnodeFormatError:  # an administrator may repair it
        return False
