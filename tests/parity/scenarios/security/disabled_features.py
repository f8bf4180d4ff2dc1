"""Read-only requests about unconfigured features, which user interfaces send to every broker."""

from __future__ import annotations

from protocol.messages.reassignments import ListPartitionReassignmentsRequest
from protocol.messages.security import DescribeAclsRequest, DescribeUserScramCredentialsRequest
from tests.parity.subject import Subject, scenario

ANY = 1
TOPIC = 2
ALLOW = 3
READ = 3


def acls(b: Subject, *, version: int = 3, resource: int = ANY, pattern: int = ANY, operation: int = ANY) -> None:
    """DescribeAcls."""
    b.ask(
        DescribeAclsRequest(
            resource_type_filter=resource,
            resource_name_filter=None,
            pattern_type_filter=pattern if version else 3,
            principal_filter=None,
            host_filter=None,
            operation=operation,
            permission_type=ANY,
        ),
        version,
    )


@scenario
def acls_without_an_authorizer(b: Subject) -> None:
    for version in range(4):
        acls(b, version=version)
    acls(b, resource=TOPIC, pattern=3, operation=READ)


@scenario
def acls_with_unknown_filters(b: Subject) -> None:
    for unknown in (0, 99, -1):
        acls(b, resource=unknown)
        acls(b, pattern=unknown)
        acls(b, operation=unknown)


@scenario
def scram_credentials_that_nobody_has(b: Subject) -> None:
    user = DescribeUserScramCredentialsRequest.UserName
    b.ask(DescribeUserScramCredentialsRequest(users=None), 0)
    b.ask(DescribeUserScramCredentialsRequest(users=[]), 0)
    b.ask(DescribeUserScramCredentialsRequest(users=[user(name="a"), user(name="b")]), 0)
    b.ask(DescribeUserScramCredentialsRequest(users=[user(name="")]), 0)
    b.ask(DescribeUserScramCredentialsRequest(users=[user(name="b"), user(name="a"), user(name="b")]), 0)
    b.ask(DescribeUserScramCredentialsRequest(users=[user(name=""), user(name="")]), 0)


@scenario
def reassignments_when_nothing_moves(b: Subject) -> None:
    topic = b.topic()
    wanted = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    b.ask(ListPartitionReassignmentsRequest(topics=None), 0)
    b.ask(ListPartitionReassignmentsRequest(topics=[]), 0)
    for name in (topic, b.name("missing"), "not/a/name", ""):
        for timeout_ms in (0, -1, 5):
            request = ListPartitionReassignmentsRequest(
                timeout_ms=timeout_ms, topics=[wanted(name=name, partition_indexes=[0, 0, 7, -1])]
            )
            b.ask(request, 0)
