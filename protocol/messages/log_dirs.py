"""AlterReplicaLogDirs and DescribeLogDirs: moving replicas between log directories, and listing them (KIP-113)."""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.wire.schema import Request, Response, Struct, boolean, field, int16, int32, int64, string


class AlterReplicaLogDirsRequest(Request, api_key=ApiKey.ALTER_REPLICA_LOG_DIRS, versions="0-2"):
    """Log directories of this broker, and the replicas to move there.

    - v2: flexible
    """

    class AlterReplicaLogDirTopic(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[int32]

    class AlterReplicaLogDir(Struct):
        """One directory, by its absolute path."""

        path: string
        topics: list[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic]

    dirs: list[AlterReplicaLogDir]


class AlterReplicaLogDirsResponse(Response, api_key=ApiKey.ALTER_REPLICA_LOG_DIRS, versions="0-2"):
    """Whether each move was started.

    - v2: flexible
    """

    class AlterReplicaLogDirPartitionResult(Struct):
        """The outcome for one partition."""

        partition_index: int32
        error_code: int16

    class AlterReplicaLogDirTopicResult(Struct):
        """The partitions of one topic."""

        topic_name: string
        partitions: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult]

    throttle_time_ms: int32
    results: list[AlterReplicaLogDirTopicResult]


class DescribeLogDirsRequest(Request, api_key=ApiKey.DESCRIBE_LOG_DIRS, versions="0-4"):
    """Partitions whose replicas on this broker to describe; null for all.

    - v2: flexible
    """

    class DescribableLogDirTopic(Struct):
        """The partitions of one topic."""

        topic: string
        partitions: list[int32]

    topics: list[DescribableLogDirTopic] | None


class DescribeLogDirsResponse(Response, api_key=ApiKey.DESCRIBE_LOG_DIRS, versions="0-4"):
    """The log directories of this broker.

    - v2: flexible
    - v3: an error for the whole request
    - v4: size of the directory's volume and bytes usable there (KIP-827)
    """

    class DescribeLogDirsPartition(Struct):
        """One replica; `offset_lag` counts messages behind the high watermark, or the replica it will replace."""

        partition_index: int32
        partition_size: int64
        offset_lag: int64
        is_future_key: boolean

    class DescribeLogDirsTopic(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[DescribeLogDirsResponse.DescribeLogDirsPartition]

    class DescribeLogDirsResult(Struct):
        """One log directory."""

        error_code: int16
        log_dir: string
        topics: list[DescribeLogDirsResponse.DescribeLogDirsTopic]
        total_bytes: int64 = field("4+", default=-1, ignorable=True)
        usable_bytes: int64 = field("4+", default=-1, ignorable=True)

    throttle_time_ms: int32
    error_code: int16 = field("3+", default=0, ignorable=True)
    results: list[DescribeLogDirsResult]
