"""Error codes as Kafka's Java client shows them: the names of its exceptions, and its default messages.

The tools print both, and scripts look for them. Names and messages are those of Kafka's `Errors` enum, for the codes
that the tools can meet.
"""

from __future__ import annotations

from protocol.errors import ApiError, ErrorCode

_TEXTS: dict[ErrorCode, tuple[str, str]] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: (
        "UnknownServerException",
        "The server experienced an unexpected error when processing the request.",
    ),
    ErrorCode.OFFSET_OUT_OF_RANGE: (
        "OffsetOutOfRangeException",
        "The requested offset is not within the range of offsets maintained by the server.",
    ),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (
        "UnknownTopicOrPartitionException",
        "This server does not host this topic-partition.",
    ),
    ErrorCode.LEADER_NOT_AVAILABLE: (
        "LeaderNotAvailableException",
        "There is no leader for this topic-partition as we are in the middle of a leadership election.",
    ),
    ErrorCode.REQUEST_TIMED_OUT: ("TimeoutException", "The request timed out."),
    ErrorCode.MESSAGE_TOO_LARGE: (
        "RecordTooLargeException",
        "The request included a message larger than the max message size the server will accept.",
    ),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ("CoordinatorNotAvailableException", "The coordinator is not available."),
    ErrorCode.NOT_COORDINATOR: ("NotCoordinatorException", "This is not the correct coordinator."),
    ErrorCode.INVALID_TOPIC_EXCEPTION: (
        "InvalidTopicException",
        "The request attempted to perform an operation on an invalid topic.",
    ),
    ErrorCode.INVALID_GROUP_ID: ("InvalidGroupIdException", "The group id is invalid."),
    ErrorCode.UNKNOWN_MEMBER_ID: (
        "UnknownMemberIdException",
        "The coordinator is not aware of this member.",
    ),
    ErrorCode.NON_EMPTY_GROUP: ("GroupNotEmptyException", "The group is not empty."),
    ErrorCode.GROUP_ID_NOT_FOUND: ("GroupIdNotFoundException", "The group id does not exist."),
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (
        "GroupSubscribedToTopicException",
        "Deleting offsets of a topic is forbidden while the consumer group is actively subscribed to it.",
    ),
    ErrorCode.POLICY_VIOLATION: (
        "PolicyViolationException",
        "Request parameters do not satisfy the configured policy.",
    ),
    ErrorCode.KAFKA_STORAGE_ERROR: ("KafkaStorageException", "Disk error when trying to access log file on the disk."),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ("TopicAuthorizationException", "Topic authorization failed."),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ("GroupAuthorizationException", "Group authorization failed."),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ("ClusterAuthorizationException", "Cluster authorization failed."),
    ErrorCode.INVALID_REQUEST: (
        "InvalidRequestException",
        (
            "This most likely occurs because of a request being malformed by the client library or the message was "
            "sent to an incompatible broker. See the broker logs for more details."
        ),
    ),
    ErrorCode.SECURITY_DISABLED: ("SecurityDisabledException", "Security features are disabled."),
    ErrorCode.TOPIC_ALREADY_EXISTS: ("TopicExistsException", "Topic with this name already exists."),
    ErrorCode.INVALID_PARTITIONS: ("InvalidPartitionsException", "Number of partitions is below 1."),
    ErrorCode.INVALID_REPLICATION_FACTOR: (
        "InvalidReplicationFactorException",
        "Replication factor is below 1 or larger than the number of available brokers.",
    ),
    ErrorCode.INVALID_CONFIG: ("InvalidConfigurationException", "Configuration is invalid."),
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: (
        "InvalidReplicaAssignmentException",
        "Replica assignment is invalid.",
    ),
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: (
        "NoReassignmentInProgressException",
        "No partition reassignment is in progress.",
    ),
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: (
        "PreferredLeaderNotAvailableException",
        "The preferred leader was not available.",
    ),
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: (
        "EligibleLeadersNotAvailableException",
        "Eligible topic partition leaders are not available.",
    ),
    ErrorCode.ELECTION_NOT_NEEDED: (
        "ElectionNotNeededException",
        "Leader election not needed for topic partition.",
    ),
    ErrorCode.SASL_AUTHENTICATION_FAILED: ("SaslAuthenticationException", "SASL Authentication failed."),
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: (
        "DelegationTokenDisabledException",
        "Delegation Token feature is not enabled.",
    ),
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: (
        "DelegationTokenNotFoundException",
        "Delegation Token is not found on server.",
    ),
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: (
        "DelegationTokenOwnerMismatchException",
        "Specified Principal is not valid Owner/Renewer.",
    ),
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: (
        "UnsupportedByAuthenticationException",
        (
            "Delegation Token requests are not allowed on PLAINTEXT/1-way SSL channels and on delegation token "
            "authenticated channels."
        ),
    ),
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: (
        "DelegationTokenAuthorizationException",
        "Delegation Token authorization failed.",
    ),
    ErrorCode.DELEGATION_TOKEN_EXPIRED: ("DelegationTokenExpiredException", "Delegation Token is expired."),
    ErrorCode.INVALID_PRINCIPAL_TYPE: (
        "InvalidPrincipalTypeException",
        "Supplied principalType is not supported.",
    ),
    ErrorCode.TOPIC_DELETION_DISABLED: ("TopicDeletionDisabledException", "Topic deletion is disabled."),
}

_PACKAGE = "org.apache.kafka.common.errors."


def message_of(code: ErrorCode) -> str:
    """The message of Kafka's client for a code that came without one."""
    known = _TEXTS.get(code)
    return known[1] if known else code.name


def exception_of(code: ErrorCode) -> str:
    """The Java exception class of a code, with its package."""
    known = _TEXTS.get(code)
    return _PACKAGE + (known[0] if known else f"{code.name.title().replace('_', '')}Exception")


def exception_text(error: ApiError) -> str:
    """An error as Java shows it: its class and, if it has one, its message."""
    known = _TEXTS.get(error.error_code)
    message = error.message or (known[1] if known else "")
    return f"{exception_of(error.error_code)}: {message}" if message else exception_of(error.error_code)
