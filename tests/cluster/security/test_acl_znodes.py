"""Access control lists as Kafka stores them in ZooKeeper, decoded and encoded byte for byte."""

from __future__ import annotations

import pytest

from cluster.security.acl_znodes import (
    PERSISTENT_PATHS,
    acl_path,
    decode_acls,
    decode_change,
    encode_acls,
    encode_change,
)
from cluster.znodes import ZnodeFormatError
from protocol.acl_types import (
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)

ALICE = AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)
TOKENS = AccessControlEntry("User:CN=é", "10.0.0.1", AclOperation.DESCRIBE_TOKENS, AclPermissionType.DENY)
LISTS = (
    '{"acls":[{"principal":"User:alice","permissionType":"Allow","host":"*","operation":"Read"},'
    '{"principal":"User:CN=é","permissionType":"Deny","host":"10.0.0.1","operation":"DescribeTokens"}],"version":1}'
).encode()
PREFIXED = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "tx-", PatternType.PREFIXED)
PREFIXED_CHANGE = b'{"version":1,"resourceType":"TRANSACTIONAL_ID","name":"tx-","patternType":"PREFIXED"}'


def test_entries() -> None:
    assert decode_acls("/kafka-acl/Topic/t", LISTS) == [ALICE, TOKENS]
    assert encode_acls([ALICE, TOKENS]) == LISTS
    assert decode_acls("/kafka-acl/Topic/t", None) == []


def test_paths() -> None:
    assert acl_path(ResourcePattern(ResourceType.TOPIC, "t")) == "/kafka-acl/Topic/t"
    assert acl_path(ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")) == "/kafka-acl/Cluster/kafka-cluster"
    assert acl_path(PREFIXED) == "/kafka-acl-extended/prefixed/TransactionalId/tx-"
    parents = {path.rpartition("/")[0] for path in PERSISTENT_PATHS} - {""}
    assert all(PERSISTENT_PATHS.index(parent) < PERSISTENT_PATHS.index(path)
               for path in PERSISTENT_PATHS for parent in parents if path.startswith(f"{parent}/"))  # fmt: skip


def test_notices() -> None:
    literal = ResourcePattern(ResourceType.TOPIC, "a:b")
    assert encode_change(literal) == b"TOPIC:a:b"
    assert encode_change(PREFIXED) == PREFIXED_CHANGE
    assert decode_change(PatternType.LITERAL, "/x", b"TOPIC:a:b") == literal
    assert decode_change(PatternType.LITERAL, "/x", b"Topic:a:b") == literal, "as Kafka 1.1 wrote it"
    assert decode_change(PatternType.PREFIXED, "/x", PREFIXED_CHANGE) == PREFIXED


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b"[",
        b'{"version":2,"acls":[]}',
        LISTS.replace(b"Read", b"Any"),
        LISTS.replace(b"Allow", b"Perhaps"),
        LISTS.replace(b"User:alice", b"alice"),
        LISTS.replace(b'"*"', b"7"),
        LISTS.replace(b"User:alice", b"User:\\uD800"),
        LISTS.replace(b"User:alice", b"User:\xed\xa0\x80"),
        b"[" * 100_000,
    ],
)
def test_what_is_not_understood_is_not_taken_for_nothing(data: bytes) -> None:
    with pytest.raises(ZnodeFormatError, match="/kafka-acl/Topic/t"):
        decode_acls("/kafka-acl/Topic/t", data)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (PatternType.LITERAL, b"topic"),
        (PatternType.LITERAL, b"Nothing:t"),
        (PatternType.LITERAL, b"\xff:t"),
        (PatternType.PREFIXED, PREFIXED_CHANGE.replace(b'n":1', b'n":2')),
        (PatternType.PREFIXED, PREFIXED_CHANGE.replace(b"PREFIXED", b"MATCH")),
        (PatternType.PREFIXED, PREFIXED_CHANGE.replace(b"tx-", b"\\udfff")),
        (PatternType.PREFIXED, PREFIXED_CHANGE.replace(b"TRANSACTIONAL_ID", b"ANY")),
    ],
)
def test_notices_that_are_not_understood(kind: PatternType, data: bytes) -> None:
    with pytest.raises(ZnodeFormatError, match="/change"):
        decode_change(kind, "/change", data)
