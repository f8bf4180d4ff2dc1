"""The settings of the controller service."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.controller.topics import NewTopic
from config.broker_config import BrokerConfig
from protocol.topic_partition import CONSUMER_OFFSETS, TRANSACTION_STATE
from protocol.value import Value, field


class InternalTopic(Value):
    """How an internal topic is created when it is first needed."""

    num_partitions: int
    replication_factor: int
    config: Mapping[str, str]


class ControllerSettings(Value):
    """Broker settings this service works by."""

    num_partitions: int = 1
    default_replication_factor: int = 1
    auto_create_topics: bool = True
    delete_topics: bool = True
    leader_imbalance_percentage: int = 10
    internal_topics: Mapping[str, InternalTopic] = field(default_factory=dict)

    def new_topic(self, name: str) -> NewTopic:
        """Settings of a topic that is created automatically."""
        internal = self.internal_topics.get(name)
        if internal is None:
            return NewTopic(name)
        return NewTopic(name, internal.num_partitions, internal.replication_factor, config=dict(internal.config))


def controller_settings(config: BrokerConfig) -> ControllerSettings:
    """The settings in `config`."""
    offsets_topic = InternalTopic(
        config.offsets_topic_num_partitions,
        config.offsets_topic_replication_factor,
        {
            "cleanup.policy": "compact",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
            "compression.type": "producer",
        },
    )
    transactions_topic = InternalTopic(
        config.transaction_state_log_num_partitions,
        config.transaction_state_log_replication_factor,
        {
            "cleanup.policy": "compact",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "unclean.leader.election.enable": "false",
        },
    )
    return ControllerSettings(
        config.num_partitions,
        config.default_replication_factor,
        config.auto_create_topics_enable,
        config.delete_topic_enable,
        config.leader_imbalance_per_broker_percentage,
        {CONSUMER_OFFSETS: offsets_topic, TRANSACTION_STATE: transactions_topic},
    )
