"""The versions of the requests between brokers, which are agreed on beforehand and never negotiated.

They are those that inter.broker.protocol.version=3.9 stands for (Kafka class `MetadataVersion`).
"""

from __future__ import annotations

from typing import Final

LEADER_AND_ISR: Final = 7
STOP_REPLICA: Final = 4
UPDATE_METADATA: Final = 8
FETCH: Final = 17
LIST_OFFSETS: Final = 9
OFFSET_FOR_LEADER_EPOCH: Final = 4
ALTER_PARTITION: Final = 3
ALTER_PARTITION_WITHOUT_TOPIC_IDS: Final = 1
"""For topics from before Kafka 2.8, which have none."""
CONTROLLED_SHUTDOWN: Final = 3
ALLOCATE_PRODUCER_IDS: Final = 0
CREATE_TOPICS: Final = 7
WRITE_TXN_MARKERS: Final = 1
ADD_PARTITIONS_TO_TXN: Final = 5
