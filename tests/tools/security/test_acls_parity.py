"""kafka-acls: Kafka's and ours, against Apache Kafka with an authorizer and against our broker: the same output.

Kafka prints hash sets in any order, so the order of lines is ignored. It reads confirmations in a way that needs a
separate JVM, so everything here is removed with --force.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from security.authorization import ACL_AUTHORIZER
from tests.kit.apache_kafka import ApacheKafka
from tests.kit.broker_process import BrokerProcess
from tests.tools.tool_pair import Answer, Runner, Step, lines_of, play, read_case

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

STEPS = """
acls AT --add --topic SIDE-t --allow-principal User:a
acls AT --add --topic SIDE-t --allow-principal User:a --operation read --operation Write
acls AT --add --topic SIDE-t --deny-principal User:b --deny-host 10.0.0.1 --deny-host 10.0.0.2 --operation All
acls AT --add --topic SIDE-u --topic SIDE-v --allow-principal User:a --allow-principal User:b --operation Read
acls AT --list --topic SIDE-t
acls AT --list --topic SIDE-t --topic SIDE-u
acls AT --list --topic SIDE-t --principal User:b
acls AT --list --topic SIDE-t --topic SIDE-u --principal User:b --principal User:a
acls AT --list --topic SIDE-t --principal User:nobody
acls AT --list --topic SIDE-nothing
own: acls AT --list
# Roles
acls AT --add --producer --topic SIDE-p --allow-principal User:a
acls AT --add --producer --topic SIDE-p --transactional-id SIDE-x --allow-principal User:a
acls AT --add --consumer --topic SIDE-c --group SIDE-g --allow-principal User:a --allow-host 10.0.0.1
acls AT --add --producer --consumer --topic SIDE-b --group SIDE-g --allow-principal User:a
acls AT --add --producer --topic SIDE-p --allow-principal User:a --operation read
acls AT --add --producer --allow-principal User:a
acls AT --add --consumer --topic SIDE-p --allow-principal User:a
acls AT --add --consumer --topic SIDE-p --group SIDE-g --cluster --allow-principal User:a
acls AT --add --topic SIDE-p --idempotent --allow-principal User:a
acls AT --remove --force --producer --topic SIDE-p --allow-principal User:a
acls AT --list --topic SIDE-p --transactional-id SIDE-x
# Patterns
acls AT --add --topic SIDE-pre --resource-pattern-type prefixed --allow-principal User:a
acls AT --list --topic SIDE-prefix --resource-pattern-type match
acls AT --list --topic SIDE-prefix --resource-pattern-type any
acls AT --list --topic SIDE-pre --resource-pattern-type any
acls AT --list --topic SIDE-pre
acls AT --list --topic SIDE-pre --resource-pattern-type PREFIXED
acls AT --list --topic SIDE-pre --resource-pattern-type nothing
acls AT --add --topic SIDE-pre --resource-pattern-type match --allow-principal User:a
acls AT --add --topic SIDE-pre --resource-pattern-type any --allow-principal User:a
acls AT --remove --force --topic SIDE-prefix --resource-pattern-type match
acls AT --list --topic SIDE-pre --resource-pattern-type any
# Other resources
acls AT --add --group SIDE-g --allow-principal User:a --operation delete
acls AT --add --transactional-id SIDE-x --allow-principal User:a --operation write
acls AT --add --delegation-token SIDE-d --allow-principal User:a --operation describe
acls AT --add --user-principal User:SIDE-u --allow-principal User:a --operation CreateTokens
own: acls AT --add --cluster --allow-principal User:SIDE-a --operation ClusterAction --operation IdempotentWrite
own: acls AT --list --cluster
acls AT --add --topic SIDE-t --allow-principal User:a --operation ClusterAction
acls AT --add --group SIDE-t --allow-principal User:a --operation write
acls AT --add --topic SIDE-t --allow-principal User:a --operation nothing
# Removing
acls AT --remove --force --topic SIDE-t --deny-principal User:b --deny-host 10.0.0.1
acls AT --remove --force --topic SIDE-t
acls AT --remove --force --topic SIDE-t --topic SIDE-u --topic SIDE-v
acls AT --list --topic SIDE-t --topic SIDE-u --topic SIDE-v
acls AT --remove --force --topic SIDE-nothing
# Mistakes
acls
acls AT
acls --list
acls AT --list --add
acls AT --add
acls AT --remove
acls AT --add --topic SIDE-t
acls AT --add --allow-principal User:a
acls AT --list --allow-principal User:a
acls AT --list --producer
acls AT --add --topic SIDE-t --principal User:a
acls AT --add --topic SIDE-t --allow-principal a
acls AT --add --topic SIDE-t --allow-principal User:a --deny-host 10.0.0.1
acls AT --add --topic SIDE-t --allow-host 10.0.0.1
acls AT --add --topic SIDE/t --allow-principal User:a
acls AT --nothing
"""


@pytest.fixture(scope="module", params=["apache-kafka", "odradek"])
def secured_address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker with an authorizer that treats every client as a super user."""
    kind: type[ApacheKafka | BrokerProcess] = ApacheKafka if request.param == "apache-kafka" else BrokerProcess
    settings = {"authorizer.class.name": ACL_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    broker = kind(tmp_path_factory.mktemp(f"secured-{request.param}"), settings)
    broker.start()
    yield broker.address
    broker.stop()


def comparable(answer: Answer, step: Step, side: str) -> tuple[int | None, list[str]]:
    """The exit code and the lines."""
    lines = [line.strip() for line in lines_of(answer)]
    if step.compare == "own":
        lines = [line for line in lines if f"{side}-" in line]
    return answer.code, sorted(
        line.replace(f"{side}-", "<side>-").replace(f"{side}/", "<side>/") for line in lines if line
    )


def test_both_say_the_same(secured_address: str, kafkas: Runner, ours: Runner, tmp_path: Path) -> None:
    differences = []
    with ThreadPoolExecutor(2) as sides:
        for step in read_case(STEPS):
            theirs, mine = sides.map(
                lambda runner, step=step: play(runner, step, secured_address, tmp_path), (kafkas, ours)
            )
            expected, actual = comparable(theirs, step, kafkas.side), comparable(mine, step, ours.side)
            if expected != actual:
                differences.append(f"{step.line}\n  Kafka's: {expected}\n  ours:    {actual}\n  {mine.stderr[-300:]}")
    assert not differences, f"{len(differences)} differ:\n" + "\n".join(differences)
