"""A cluster with an authorizer, over TLS and SASL: a user has her rights at each of the brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from security.authorization import ACL_AUTHORIZER
from tests.compat.security.secured_brokers import COUNT, consume, produce
from tests.compat.security.test_secured_cluster import Security, secured_cluster
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ANY = ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY


def allowed(kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    """A grant to alice for the prefix `name`."""
    who = "User:alice", "*", operation, AclPermissionType.ALLOW
    return AclBinding(kind, name, ResourcePatternType.PREFIXED, *who)


def error_of_producing(client: dict[str, Any], topic: str) -> int | None:
    """The error code of producing one record."""
    errors: list[KafkaError | None] = []
    producer = Producer({**client, "message.timeout.ms": 20_000})
    producer.produce(topic, "x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    return None if errors[0] is None else errors[0].code()


def commit_one(client: dict[str, Any], topic: str) -> int | None:
    """Commit a transaction; returns the error code if it fails."""
    producer = Producer({**client, "transactional.id": "tx-1"})
    try:
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, str(COUNT))
        producer.commit_transaction(30)
    except KafkaException as error:
        return int(error.args[0].code())
    return None


def test_a_user_may_do_what_she_is_allowed(tmp_path: Path) -> None:
    security = Security(tmp_path, has_sasl=True)
    # The test itself uses plain text.
    security.broker |= {"authorizer.class.name": ACL_AUTHORIZER, "super.users": "User:broker;User:ANONYMOUS"}
    with secured_cluster(tmp_path, security) as cluster:
        first, second, _ = (AdminClient({"bootstrap.servers": each.address}) for each in cluster.brokers.values())
        first.create_topics([NewTopic("topic", 3, 3)])["topic"].result(30)
        assert error_of_producing(security.client, "topic") == KafkaError.TOPIC_AUTHORIZATION_FAILED

        def allow(*bindings: AclBinding) -> None:
            for future in first.create_acls(list(bindings)).values():
                future.result(30)

        allow(
            allowed(ResourceType.TOPIC, "top", AclOperation.WRITE),
            allowed(ResourceType.TOPIC, "top", AclOperation.READ),
            allowed(ResourceType.GROUP, "g-", AclOperation.READ),
        )
        produce(security.client, "topic", 0)
        consume(security.client, "topic", COUNT)
        assert commit_one(security.client, "topic") == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        allow(allowed(ResourceType.TRANSACTIONAL_ID, "tx-", AclOperation.WRITE))
        # Its markers are inter-broker requests.
        assert commit_one(security.client, "topic") is None
        consume(security.client, "topic", COUNT + 1)
        everything = AclBindingFilter(ResourceType.TOPIC, None, *ANY)
        assert len(second.delete_acls([everything])[everything].result(30)) == 2
        eventually(
            "nobody lets her in any more",
            lambda: error_of_producing(security.client, "topic"),
            lambda code: code == KafkaError.TOPIC_AUTHORIZATION_FAILED,
        )
