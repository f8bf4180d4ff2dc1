"""Access control lists on the wire: resources, operations and permissions, with their numbers and names (KIP-140,
KIP-290; Kafka's `org.apache.kafka.common.acl` and `common.resource`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

from protocol.value import Value


class ResourceType(IntEnum):
    """The kind of a resource."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name of a pattern is matched. ANY and MATCH exist in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """An operation on a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class AclPermissionType(IntEnum):
    """Whether an entry allows or denies access."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


SUPPORTED_OPERATIONS: Final = {
    ResourceType.TOPIC: (
        AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER,
        AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE),
    ResourceType.CLUSTER: (
        AclOperation.CREATE, AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS, AclOperation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}  # fmt: skip
"""The operations supported for each type of resource (Kafka class `AclEntry`)."""

WILDCARD: Final = "*"
"""As the name of a literal pattern, all resources of its type; as a host, all hosts."""
WILDCARD_PRINCIPAL: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of the type CLUSTER."""

_E = TypeVar("_E", bound=IntEnum)


def code_of(codes: type[_E], number: int) -> _E:
    """The member with this number; UNKNOWN for an undefined number."""
    try:
        return codes(number)
    except ValueError:
        return codes(0)


def title(code: ResourceType | AclOperation | AclPermissionType) -> str:
    """The name as Kafka stores and logs it (`SecurityUtils`): TransactionalId."""
    return code.name.title().replace("_", "")


class ResourcePattern(NamedTuple):
    """The resources that an access control entry applies to."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def __str__(self) -> str:
        return (
            f"ResourcePattern(resourceType={self.resource_type.name}, name={self.name}, "
            f"patternType={self.pattern_type.name})"
        )


class AccessControlEntry(NamedTuple):
    """A rule that allows or denies a principal an operation from a host. `principal` is `User:name`, `host` an address
    or WILDCARD.
    """

    principal: str
    host: str
    operation: AclOperation
    permission: AclPermissionType

    def __str__(self) -> str:
        return (
            f"(principal={self.principal}, host={self.host}, operation={self.operation.name}, "
            f"permissionType={self.permission.name})"
        )


class AclBinding(NamedTuple):
    """An entry together with the resources that it applies to."""

    pattern: ResourcePattern
    entry: AccessControlEntry


class ResourceFilter(Value):
    """A filter for patterns. No `name` means any; with MATCH it is the name of a resource, and selects the patterns
    that apply to that resource.
    """

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY

    def __str__(self) -> str:
        name = "<any>" if self.name is None else self.name
        kind, pattern = self.resource_type.name, self.pattern_type.name
        return f"ResourcePattern(resourceType={kind}, name={name}, patternType={pattern})"

    def matches(self, pattern: ResourcePattern) -> bool:
        """Whether the pattern matches (`ResourcePatternFilter.matches`)."""
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None or self.name == pattern.name:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return False
        if pattern.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name == WILDCARD

    @property
    def patterns(self) -> tuple[ResourcePattern, ...]:
        """The patterns that can match, if the filter names them exactly; otherwise none."""
        if self.resource_type in (ResourceType.ANY, ResourceType.UNKNOWN) or self.name is None:
            return ()
        if self.pattern_type is PatternType.ANY:
            kinds: tuple[PatternType, ...] = (PatternType.LITERAL, PatternType.PREFIXED)
        else:
            kinds = (self.pattern_type,) if self.pattern_type >= PatternType.LITERAL else ()
        return tuple(ResourcePattern(self.resource_type, self.name, kind) for kind in kinds)


class EntryFilter(Value):
    """A filter for entries; None and ANY mean any."""

    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermissionType = AclPermissionType.ANY

    def matches(self, entry: AccessControlEntry) -> bool:
        """Whether the entry matches (`AccessControlEntryFilter.matches`)."""
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission in (AclPermissionType.ANY, entry.permission)
        )


class AclFilter(Value):
    """A filter for bindings, as in DescribeAcls and DeleteAcls (Kafka's `AclBindingFilter`)."""

    resource: ResourceFilter = ResourceFilter()
    entry: EntryFilter = EntryFilter()
