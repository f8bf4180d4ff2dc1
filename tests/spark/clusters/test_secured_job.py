"""A job over SASL_SSL and SCRAM, with rights only to what it reads, writes and commits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from security.authorization import ACL_AUTHORIZER
from tests.compat.security.listener_site import PASSWORD, USER, ListenerSite
from tests.spark.job_runs import make_topics, produce_values
from tests.spark.warm_jobs import WarmJobs

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

GROUP = "quality-of-alice"
RULES = "rules: [{name: positive, expect: n > 0}]"
SECURITY = {"authorizer.class.name": ACL_AUTHORIZER, "super.users": "User:ANONYMOUS"}
"""Plain-text clients are super users."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ListenerSite]:
    made = ListenerSite(tmp_path_factory.mktemp("secured"), SECURITY)
    made.start()
    yield made
    assert made.process.stop() == 0
    assert "Traceback" not in made.process.output.read_text()


def allow(site: ListenerSite, kind: ResourceType, name: str, operation: AclOperation) -> None:
    """Grant the user a right, from every host."""
    binding = AclBinding(
        kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", operation, AclPermissionType.ALLOW
    )
    admin = AdminClient({"bootstrap.servers": site.addresses["PLAINTEXT"]})
    for future in admin.create_acls([binding]).values():
        future.result(30)


def client_file(site: ListenerSite, password: str = PASSWORD) -> str:
    """Properties as a Kafka user writes them: quoted for JAAS, and once more for the file."""
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = f'{module} required username="{USER}" password="{quoted}";'.replace("\\", "\\\\")
    path = site.directory / "spark.properties"
    path.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={jaas}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={site.known.trusted}\n"
    )
    return str(path)


def refusals(site: ListenerSite) -> list[tuple[str, str]]:
    """The user's refused operations in the authorizer's log, without duplicates."""
    said = site.process.output.read_text()
    found = re.findall(rf"INFO Principal = User:{USER} is Denied Operation = (.+?) from .+? resource = (\S+)", said)
    return list(dict.fromkeys(found))


def values(site: ListenerSite, topic: str, count: int) -> list[bytes]:
    """Values of the records in a topic."""
    settings = {"bootstrap.servers": site.addresses["PLAINTEXT"], "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found: list[bytes] = []
    while len(found) < count:
        batch = consumer.consume(count - len(found), 30)
        assert batch, f"{len(found)} of {count} records are in {topic}"
        found += [each.value() or b"" for each in batch]
    consumer.close()
    return found


def test_a_job_reads_and_writes_with_only_the_rights_it_needs(
    site: ListenerSite, jobs: WarmJobs, tmp_path: Path
) -> None:
    source, good, bad = make_topics(site.addresses["PLAINTEXT"], "numbers", "good", "bad")
    sent = [b'{"n": %d}' % number for number in range(-100, 400)]
    produce_values(site.addresses["PLAINTEXT"], source, sent)
    rules, schema = tmp_path / "rules.yaml", tmp_path / "schema.ddl"
    rules.write_text(RULES)
    schema.write_text("n INT")

    def run(password: str = PASSWORD) -> tuple[int, str]:
        return jobs.run(
            "quality",
            *("--bootstrap-servers", site.addresses["SASL_SSL"], "--command-config", client_file(site, password)),
            *("--topics", source, "--out-topic", good, "--dlq-topic", bad, "--group-id", GROUP),
            *("--rules", str(rules), "--schema", str(schema), "--checkpoint", str(tmp_path / "checkpoint")),
        )

    def assert_refused(reason: str, password: str = PASSWORD) -> None:
        code, said = run(password)
        assert code, said
        assert said.splitlines()[-1].startswith("quality: "), said
        assert reason in said.splitlines()[-1]

    topic, read, write = ResourceType.TOPIC, AclOperation.READ, AclOperation.WRITE
    assert_refused("invalid credentials with SASL mechanism SCRAM-SHA-512", "wrong")
    refused = f"topic {{}} at {site.addresses['SASL_SSL']}: Topic authorization failed."
    assert_refused(refused.format(source))
    allow(site, topic, source, read)
    assert_refused(refused.format(good))
    allow(site, topic, good, write)
    allow(site, topic, bad, write)
    allow(site, ResourceType.GROUP, GROUP, read)
    before = refusals(site)
    assert before == [("Describe", f"Topic:LITERAL:{source}"), ("Describe", f"Topic:LITERAL:{good}")]
    code, said = run()
    assert code == 0, said
    assert refusals(site) == before, "nothing else is asked for"
    assert sorted(json.loads(each)["n"] for each in values(site, good, 399)) == list(range(1, 400))
    assert sorted(values(site, bad, 101)) == sorted(sent[:101])
    admin = AdminClient({"bootstrap.servers": site.addresses["PLAINTEXT"]})
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)]).values()
    assert sum(each.offset for each in future.result(30).topic_partitions) == len(sent)
