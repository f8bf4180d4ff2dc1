"""Metadata, DescribeCluster, DescribeLogDirs, FindCoordinator and ApiVersions: the inventory of a cluster."""

from __future__ import annotations

from protocol.messages.api_versions import ApiVersionsRequest
from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.log_dirs import DescribeLogDirsRequest
from protocol.messages.metadata import DescribeClusterRequest, MetadataRequest
from tests.kit.environment import uuid_of
from tests.parity.scenarios.fetch import filled
from tests.parity.subject import Subject, scenario


def ask_metadata(b: Subject, *names: str, version: int = 12, create: bool = False, operations: bool = False) -> None:
    """Request topics by name."""
    b.ask(
        MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=create or version < 4,
            include_topic_authorized_operations=operations,
        ),
        version,
    )


@scenario
def one_topic_in_every_version(b: Subject) -> None:
    topic = b.topic(partitions=2)
    for version in range(13):
        ask_metadata(b, topic, version=version)


@scenario
def no_topics(b: Subject) -> None:
    b.ask(MetadataRequest(topics=[]), 12)
    b.ask(MetadataRequest(topics=[]), 1)


@scenario
def all_topics(b: Subject) -> None:
    topic = b.topic()
    for version, asked in ((0, []), (1, None), (12, None)):
        response = b.quietly(MetadataRequest(topics=asked), version)
        # Other scenarios have topics too: only the presence of this one can be compared.
        b.note(f"version {version}", [each.name for each in response.topics if each.name == topic])


@scenario
def missing_topic(b: Subject) -> None:
    for version in (4, 9, 12):
        ask_metadata(b, b.name("missing"), version=version)


@scenario
def bad_names(b: Subject) -> None:
    for name in ("", ".", "..", "a/b", "x" * 250, "a b", "ä"):
        ask_metadata(b, name)
        ask_metadata(b, name, version=4, create=True)


@scenario
def created_on_demand(b: Subject) -> None:
    topic = b.name("t")
    ask_metadata(b, topic, create=True)
    b.await_leaders(topic)
    ask_metadata(b, topic, create=True)


@scenario
def created_on_demand_in_version_3(b: Subject) -> None:
    topic = b.name("t")
    ask_metadata(b, topic, version=3)
    b.await_leaders(topic)


@scenario
def by_id(b: Subject) -> None:
    topic = b.topic()
    known = MetadataRequest.MetadataRequestTopic(name=None, topic_id=b.topic_id(topic))
    unknown = MetadataRequest.MetadataRequestTopic(name=None, topic_id=uuid_of(0x99))
    b.ask(MetadataRequest(topics=[known], allow_auto_topic_creation=False), 12)
    b.ask(MetadataRequest(topics=[unknown], allow_auto_topic_creation=False), 12)
    b.ask(MetadataRequest(topics=[known, unknown], allow_auto_topic_creation=False), 12)


@scenario
def by_id_before_version_12(b: Subject) -> None:
    topic = b.topic()
    known = MetadataRequest.MetadataRequestTopic(name=None, topic_id=b.topic_id(topic))
    b.ask(MetadataRequest(topics=[known], allow_auto_topic_creation=False), 11)
    both = MetadataRequest.MetadataRequestTopic(name=topic, topic_id=b.topic_id(topic))
    b.ask(MetadataRequest(topics=[both], allow_auto_topic_creation=False), 11)


@scenario
def by_id_and_name(b: Subject) -> None:
    topic = b.topic()
    both = MetadataRequest.MetadataRequestTopic(name=topic, topic_id=b.topic_id(topic))
    named = MetadataRequest.MetadataRequestTopic(name=topic)
    b.ask(MetadataRequest(topics=[both], allow_auto_topic_creation=False), 12)
    b.ask(MetadataRequest(topics=[both, named], allow_auto_topic_creation=False), 12)


@scenario
def neither_id_nor_name(b: Subject) -> None:
    b.ask(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=None)]), 12)


@scenario
def same_topic_twice(b: Subject) -> None:
    topic = b.topic()
    ask_metadata(b, topic, topic)


@scenario
def authorized_operations(b: Subject) -> None:
    topic = b.topic()
    for version in (8, 12):
        ask_metadata(b, topic, version=version, operations=True)
    b.ask(MetadataRequest(topics=[], include_cluster_authorized_operations=True), 10)


@scenario
def internal_topic(b: Subject) -> None:
    b.coordinator(b.name("g"))
    ask_metadata(b, "__consumer_offsets")
    ask_metadata(b, "__consumer_offsets", version=1)


@scenario
def transaction_topic_on_demand(b: Subject) -> None:
    ask_metadata(b, "__transaction_state")


# -- DescribeCluster ---------------------------------------------------------------------------------------------------


@scenario
def cluster(b: Subject) -> None:
    for version in (0, 1):
        b.ask(DescribeClusterRequest(include_cluster_authorized_operations=False), version)
        b.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), version)


@scenario
def cluster_of_controllers(b: Subject) -> None:
    for endpoint_type in (0, 2, 3):
        b.ask(DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=endpoint_type), 1)


# -- DescribeLogDirs ---------------------------------------------------------------------------------------------------


def log_dirs(b: Subject, *wanted: tuple[str, list[int]], version: int = 4) -> None:
    """Ask for partitions."""
    topics = [
        DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=partitions)
        for topic, partitions in wanted
    ]
    b.ask(DescribeLogDirsRequest(topics=topics), version)


@scenario
def log_dirs_of_a_topic(b: Subject) -> None:
    topic = filled(b)
    for version in range(5):
        log_dirs(b, (topic, [0]), version=version)


@scenario
def log_dirs_of_nothing(b: Subject) -> None:
    log_dirs(b)


@scenario
def log_dirs_of_missing_partitions(b: Subject) -> None:
    log_dirs(b, (b.name("missing"), [0]))
    log_dirs(b, (filled(b), [0, 1, 9]))


@scenario
def log_dirs_of_everything(b: Subject) -> None:
    topic = filled(b)
    response = b.quietly(DescribeLogDirsRequest(topics=None), 4)
    for result in response.results:
        result.topics = [each for each in result.topics if each.name == topic]
    b.note("own topic only", response)


# -- FindCoordinator ---------------------------------------------------------------------------------------------------


@scenario
def coordinator_in_every_version(b: Subject) -> None:
    group = b.coordinator(b.name("g"))
    for version in range(4):
        b.ask(FindCoordinatorRequest(key=group), version)
    for version in (4, 5, 6):
        b.ask(FindCoordinatorRequest(coordinator_keys=[group, b.name("h")]), version)


@scenario
def coordinator_of_strange_groups(b: Subject) -> None:
    b.coordinator(b.name("g"))
    for key in ("", " ", "ä" * 300):
        b.ask(FindCoordinatorRequest(coordinator_keys=[key]), 4)
        b.ask(FindCoordinatorRequest(key=key), 3)


@scenario
def coordinator_of_no_groups(b: Subject) -> None:
    b.ask(FindCoordinatorRequest(coordinator_keys=[]), 4)


@scenario
def coordinator_of_unknown_types(b: Subject) -> None:
    for key_type in (2, 3, -1):
        b.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=[b.name("x")]), 6)
        b.ask(FindCoordinatorRequest(key_type=key_type, key=b.name("x")), 3)


# -- ApiVersions -------------------------------------------------------------------------------------------------------


def api_versions(name: str = "parity", version: str = "1.0") -> ApiVersionsRequest:
    """A request of a client with that name and version."""
    return ApiVersionsRequest(client_software_name=name, client_software_version=version)


@scenario
def api_versions_in_every_version(b: Subject) -> None:
    for version in range(5):
        b.ask(api_versions(), version)


@scenario
def versions_of_the_future(b: Subject) -> None:
    for version in (5, 100, 32767):
        with b.another() as connection:
            connection.send_body(18, version, b"\x01\x02\x03", header_version=2)
            b.note(f"version {version}", connection.receive(ApiVersionsRequest, 0))


@scenario
def api_versions_from_unnamed_software(b: Subject) -> None:
    for name, version in (("", "1"), ("x", ""), ("-x", "1"), ("x-", "1"), ("a b", "1"), ("x", "1.0-beta"), ("ä", "1")):
        b.ask(api_versions(name, version), 3)
