"""Configurations of topics, brokers and loggers, for clients with some of the rights.

Each resource is named once: Kafka does not answer otherwise.
"""

from __future__ import annotations

from protocol.acl_types import CLUSTER_NAME, AclOperation, ResourceType
from protocol.messages.configs import AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest
from tests.parity.secured.subject import SecuredSubject, acl, secured_scenario_for_each

UNKNOWN, TOPIC, BROKER, LOGGER = 0, 2, 4, 8
DESCRIBE, ALTER = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS

RIGHTS: dict[str, tuple[tuple[str, AclOperation], ...]] = {
    "nothing": (),
    "topic_described": (("topic", DESCRIBE),),
    "topic_altered": (("topic", ALTER),),
    "cluster_described": (("cluster", DESCRIBE),),
    "cluster_altered": (("cluster", ALTER),),
    "all_described": (("topic", DESCRIBE), ("cluster", DESCRIBE)),
    "all_altered": (("topic", ALTER), ("cluster", ALTER)),
    "other_rights": (("topic", AclOperation.ALTER), ("cluster", AclOperation.ALTER), ("topic", AclOperation.DESCRIBE)),
}


@secured_scenario_for_each(RIGHTS)
def rights(b: SecuredSubject, given: tuple[tuple[str, AclOperation], ...]) -> None:
    topic = b.topic("t")
    for where, operation in given:
        kind, name = (ResourceType.TOPIC, topic) if where == "topic" else (ResourceType.CLUSTER, CLUSTER_NAME)
        b.grant(acl(kind, name, operation))
    resources = [
        (TOPIC, topic, "retention.ms", "1000"),
        (TOPIC, b.name("missing"), "retention.ms", "1000"),
        (BROKER, "0", "log.cleaner.threads", "2"),
        (BROKER, "", "log.cleaner.threads", "2"),
        (LOGGER, "0", "root", "INFO"),
    ]
    described = [
        DescribeConfigsRequest.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=[key])
        for kind, name, key, _ in resources
    ]
    for version in (1, 4):
        b.as_user("alice", DescribeConfigsRequest(resources=described), version)
    altered = [
        AlterConfigsRequest.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[AlterConfigsRequest.AlterableConfig(name=key, value=value)],
        )
        for kind, name, key, value in resources
        if kind != LOGGER
    ]
    b.as_user("alice", AlterConfigsRequest(resources=altered, validate_only=True), 1)
    changed = IncrementalAlterConfigsRequest.AlterableConfig
    incremental = [
        IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=kind, resource_name=name, configs=[changed(name=key, config_operation=0, value=value)]
        )
        for kind, name, key, value in [*resources, (UNKNOWN, "x", "a", "b")]
    ]
    b.as_user("alice", IncrementalAlterConfigsRequest(resources=incremental, validate_only=True), 1)
