"""ConfigKey: the declaration of every configuration key, with Kafka's parsing rules.

The types, their parsing and the wording of the errors follow `org.apache.kafka.common.config.ConfigDef`; clients see
these messages in INVALID_CONFIG responses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, overload

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None
"""A parsed value: a tuple for LIST keys, text for CLASS and PASSWORD keys, and possibly None for nullable keys."""


class ConfigError(Exception):
    """An invalid configuration. `name` is the key, `value` the offending text, `reason` the allowed values."""

    def __init__(self, name: str, value: object, reason: str | None = None) -> None:
        self.name = name
        self.value = value
        self.reason = reason
        shown = f"[{', '.join(value)}]" if isinstance(value, tuple) else value
        if isinstance(value, bool | float):
            shown = value_to_text(value)
        text = f"Invalid value {'null' if shown is None else shown} for configuration {name}"
        super().__init__(f"{text}: {reason}" if reason else text)


class ConfigRuleError(ConfigError):
    """Several keys violate a rule; the message is complete and names them."""

    def __init__(self, name: str, value: object, message: str) -> None:
        super().__init__(name, value, message)
        self.args = (message,)


class RefusedKeyError(ConfigError):
    """One of Kafka's keys requires an unimplemented feature that must not be ignored."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(name, value, reason)
        self.args = (f"Configuration {name}={value} is not supported: {reason}",)


class ConfigErrors(ConfigError):
    """A configuration has several errors; the message has one line for each."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        super().__init__(errors[0].name, errors[0].value, errors[0].reason)
        self.errors = tuple(errors)
        lines = [f"  {error}" for error in errors]
        self.args = ("\n".join([f"{len(errors)} settings cannot be used:", *lines]),)


class ConfigType(IntEnum):
    """The types with their numbers in DescribeConfigs v3+ (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class UpdateMode(IntEnum):
    """When a broker key can change (KIP-226): only at start, on one broker, or also for the whole cluster."""

    READ_ONLY = 0
    PER_BROKER = 1
    CLUSTER_WIDE = 2


class Effect(Enum):
    """The condition for a key to have an effect on this broker."""

    ALWAYS = "always"
    NEVER = "never"
    """The key is only accepted and described."""
    TLS = "a listener has TLS"
    SASL = "a listener has SASL"
    TOKENS = "delegation tokens are enabled"
    ENCODER = "password.encoder.secret is set"


class Range(NamedTuple):
    """Numbers from `low` to `high`, inclusive. A side with None is unlimited."""

    low: float | None
    high: float | None = None

    def check(self, name: str, value: Any) -> None:
        if value is None:
            raise ConfigError(name, None, "Value must be non-null")
        if self.low is not None and value < self.low:
            raise ConfigError(name, value, f"Value must be at least {self.low}")
        if self.high is not None and value > self.high:
            raise ConfigError(name, value, f"Value must be no more than {self.high}")

    def __str__(self) -> str:
        return f"[{'' if self.low is None else self.low},...{'' if self.high is None else f',{self.high}'}]"


class RangeOr(NamedTuple):
    """`Range`, or one value that stands for the default (the compression levels of KIP-390)."""

    low: int
    high: int
    other: int

    def check(self, name: str, value: Any) -> None:
        if not self.low <= value <= self.high and value != self.other:
            raise ConfigError(name, value, f"Value must be between {self.low} and {self.high} or equal to {self.other}")

    def __str__(self) -> str:
        return f"[{self.low},...,{self.high}] or {self.other}"


class OneOf(NamedTuple):
    """The text, or each element of a list, must be one of the given words."""

    words: tuple[str, ...]

    def check(self, name: str, value: Any) -> None:
        for word in value if isinstance(value, tuple) else (value,):
            if word not in self.words:
                raise ConfigError(name, word, f"String must be one of: {', '.join(self.words)}")

    def __str__(self) -> str:
        return f"[{', '.join(self.words)}]"


class Matching(NamedTuple):
    """The text, or each element of a list, must fully match a pattern.

    `reason` is the error message; its `{name}` and `{value}` are replaced with the key and its value.
    """

    pattern: str
    reason: str

    def check(self, name: str, value: Any) -> None:
        for text in value if isinstance(value, tuple) else (value,):
            if text is not None and not re.fullmatch(self.pattern, text):
                raise ConfigError(name, value, self.reason.format(name=name, value=value))

    def __str__(self) -> str:
        return self.reason


class Validator(Protocol):
    """A check of values; its `str` describes the allowed values."""

    def check(self, name: str, value: Any, /) -> None:
        """Raise ConfigError if `value` is not allowed for the key `name`."""
        ...


class ConfigKey(NamedTuple):
    """One key. `refusal` says why a value other than the default prevents the start. It is None if the key is
    implemented or can safely be ignored.

    `internal` keys are accepted but not described, like the keys that Kafka reserves for tests.
    """

    name: str
    type: ConfigType
    default: Value
    doc: str
    valid: Validator | None = None
    update_mode: UpdateMode = UpdateMode.READ_ONLY
    refusal: str | None = None
    internal: bool = False
    effect: Effect = Effect.ALWAYS

    @property
    def is_sensitive(self) -> bool:
        """Whether the value must never be displayed."""
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str | None) -> Value:
        """Parse and check `text`. Raises ConfigError with the key, the value and the reason."""
        value = parse_value(self.name, self.type, text)
        if self.valid is not None:
            self.valid.check(self.name, value)
        return value


T = TypeVar("T")


class Setting(Generic[T]):
    """The declaration of a key in a class of `ConfigKeys`, and the attribute that reads its parsed value.

    The key's name is the attribute's with dots for underscores, unless `name` is given.
    """

    def __init__(
        self,
        value_type: ConfigType,
        default: T,
        doc: str,
        valid: Validator | None = None,
        update_mode: UpdateMode = UpdateMode.READ_ONLY,
        *,
        name: str = "",
        effect: Effect = Effect.ALWAYS,
        refusal: str | None = None,
        internal: bool = False,
    ) -> None:
        self._name = name
        self._declared: Any = value_type, default, doc, valid, update_mode, refusal, internal, effect

    def __set_name__(self, owner: type, name: str) -> None:
        self.key = ConfigKey(self._name or name.replace("_", "."), *self._declared)

    @overload
    def __get__(self, instance: None, owner: type) -> Setting[T]: ...
    @overload
    def __get__(self, instance: ConfigKeys, owner: type) -> T: ...
    def __get__(self, instance: ConfigKeys | None, owner: type) -> Any:
        return self if instance is None else instance.values[self.key.name]


class ConfigKeys:
    """The keys of one subject, each declared as an attribute; BrokerConfig inherits from all these classes."""

    values: Mapping[str, Value]

    @classmethod
    def declared(cls) -> tuple[ConfigKey, ...]:
        """The keys declared in this class, in order, without inherited ones."""
        return tuple(member.key for member in vars(cls).values() if isinstance(member, Setting))


# Uncompiled patterns: most starts never need them, and compiling would cost more than the rest of this module.
_INTEGER = r"([+-]?)0*([0-9]{1,19})"
_BOUNDS = {
    ConfigType.INT: (-(2**31), 2**31 - 1),
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.LONG: (-(2**63), 2**63 - 1),
}
# The numbers that java.lang.Double.parseDouble accepts; Python's float() differs.
_DOUBLE = r"[+-]?(NaN|Infinity|([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?)"


def parse_value(name: str, value_type: ConfigType, text: str | None) -> Value:
    """Parse by type, without checks (`ConfigDef.parseType`): surrounding blanks are ignored, None stays None."""
    if text is None:
        return None
    trimmed = text.strip()
    if value_type in _BOUNDS:
        low, high = _BOUNDS[value_type]
        # Python refuses numbers of many thousand digits, even zeros.
        found = re.fullmatch(_INTEGER, trimmed)
        if found is None or not low <= int(found[1] + found[2]) <= high:
            raise ConfigError(name, text, f"Not a number of type {value_type.name}")
        return int(found[1] + found[2])
    if value_type is ConfigType.BOOLEAN:
        if trimmed.lower() not in {"true", "false"}:
            raise ConfigError(name, text, "Expected value to be either true or false")
        return trimmed.lower() == "true"
    if value_type is ConfigType.DOUBLE:
        if not re.fullmatch(_DOUBLE, trimmed):
            raise ConfigError(name, text, "Not a number of type DOUBLE")
        return float(trimmed.rstrip("dDfF") if trimmed[-1] in "dDfF" else trimmed)
    if value_type is ConfigType.LIST:
        return tuple(each.strip() for each in trimmed.split(",")) if trimmed else ()
    return trimmed


def value_to_text(value: Value) -> str | None:
    """The text of a parsed value in Java's notation (`ConfigDef.convertToString`)."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return _double_to_text(value) if isinstance(value, float) else str(value)


def _double_to_text(value: float) -> str:
    """`java.lang.Double.toString`: at least one digit after the point, scientific outside 1e-3 .. 1e7."""
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124  (NaN is the value unequal to itself)
        return "NaN" if value != value else ("Infinity" if value > 0 else "-Infinity")  # noqa: PLR0124
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = format(value, "f") if "e" in repr(value) else repr(value)
        return text.rstrip("0") + "0" if text.endswith("00") else text
    digits, exponent = format(value, ".17e").split("e")
    for precision in range(17):
        shorter = format(value, f".{precision}e")
        if float(shorter) == value:
            digits, exponent = shorter.split("e")
            break
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"


def table(keys: Iterable[ConfigKey]) -> Mapping[str, ConfigKey]:
    """Keys by name, in the given order. Raises ValueError for a duplicate name."""
    by_name: dict[str, ConfigKey] = {}
    for declared in keys:
        if declared.name in by_name:
            raise ValueError(f"{declared.name} is declared twice")
        by_name[declared.name] = declared
    return by_name


BOOLEAN = ConfigType.BOOLEAN
STRING = ConfigType.STRING
INT = ConfigType.INT
SHORT = ConfigType.SHORT
LONG = ConfigType.LONG
DOUBLE = ConfigType.DOUBLE
LIST = ConfigType.LIST
CLASS = ConfigType.CLASS
PASSWORD = ConfigType.PASSWORD

PER_BROKER = UpdateMode.PER_BROKER
CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308

COMPRESSION_TYPES = OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"))
METADATA_VERSION = Matching(
    r"(0\.8\.[012]|0\.9\.0(\.\d+)?|0\.1[01]\.\d+(\.\d+|-IV\d)?|[1-3]\.\d+(\.\d+)?(-IV\d)?|4\.0(-IV[01])?)",
    "Version {value} is not a valid version",
)
NON_EMPTY = Matching("(?s).+", "String must be non-empty")
THROTTLED_REPLICAS = Matching(
    r"\*|[0-9]+:[0-9]+",
    "{name} must be the literal '*' or a list of replicas in the following format: "
    "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
)

AUTHORIZERS = Matching(
    r"|kafka\.security\.authorizer\.AclAuthorizer",
    "Java classes cannot be loaded; there is kafka.security.authorizer.AclAuthorizer",
)
REPLICA_SELECTORS = Matching(
    r"org\.apache\.kafka\.common\.replica\.(LeaderSelector|RackAwareReplicaSelector)",
    "Java classes cannot be loaded; there are org.apache.kafka.common.replica.LeaderSelector and "
    "org.apache.kafka.common.replica.RackAwareReplicaSelector",
)

NO_KINIT = "the Kerberos library gets new tickets from the keytab in time; remove it"
NO_MECHANISM = "Java classes are not implemented; use GSSAPI, PLAIN, SCRAM or OAUTHBEARER and remove it"
NO_ENCODER = "Odradek does not re-encode passwords; set those of dynamic configurations again and remove this key"
NO_OTHER_ACLS = "ACLs are kept where zookeeper.connect says; remove authorizer.zookeeper.*"
NO_PLUGINS = "Java classes cannot be loaded; remove it"
NO_POLICIES = "policies are not implemented yet, every change would be let through; remove it"
NO_REVOCATION = "revoked certificates are not looked for; remove it, and let ZooKeeper's certificates expire soon"
NO_KRAFT = (
    "KRaft is not implemented; with process.roles=broker,controller a configuration of one node is read as a broker "
    "alone, in another remove it"
)
NO_REMOTE_STORAGE = "remote storage is not implemented; remove it"
NO_CONTROL_PLANE = "a separate listener for the controller is not implemented yet; remove it"
