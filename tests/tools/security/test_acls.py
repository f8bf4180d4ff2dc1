"""kafka-acls against our broker, which authorizes it, too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from security.authorization import ACL_AUTHORIZER
from tests.kit.broker_process import BrokerProcess
from tools import acls

TOPIC = "ResourcePattern(resourceType=TOPIC, name=t, patternType=LITERAL)"


def entry(principal: str, operation: str, permission: str = "ALLOW", host: str = "*") -> str:
    return f"\t(principal={principal}, host={host}, operation={operation}, permissionType={permission})"


def current(resource: str, *entries: str) -> str:
    lines = "\n".join(entries)
    return f"Current ACLs for resource `{resource}`: \n {lines} \n\n"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"authorizer.class.name": ACL_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"), settings)
    broker.start()
    yield broker.address
    broker.stop()


class Tool:
    """Runs the tool on a broker, whose ACLs are removed at the end."""

    def __init__(self, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._address = address
        self._capsys = capsys

    def run(self, *arguments: str, code: int = 0) -> str:
        assert acls.main(["--bootstrap-server", self._address, *arguments]) == code
        said = self._capsys.readouterr()
        return said.err if code and not said.out else said.out


@pytest.fixture
def tool(address: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Tool]:
    tool = Tool(address, capsys)
    yield tool
    for option in ("--topic", "--group", "--transactional-id"):
        tool.run("--remove", "--force", option, "t", "--resource-pattern-type", "match")
    tool.run("--remove", "--force", "--cluster")
    assert tool.run("--list") == ""


def test_added_shown_and_removed(tool: Tool) -> None:
    said = tool.run(
        "--add", "--topic", "t", "--allow-principal", "User:a", "--operation", "read", "--operation", "Write"
    )
    both = (entry("User:a", "READ"), entry("User:a", "WRITE"))
    lines = "\n".join(both)
    assert said == f"Adding ACLs for resource `{TOPIC}`: \n {lines} \n\n"
    denied = ("--deny-principal", "User:b", "--deny-host", "10.0.0.1")
    tool.run("--add", "--topic", "t", *denied)
    third = entry("User:b", "ALL", "DENY", "10.0.0.1")
    assert tool.run("--list", "--topic", "t") == current(TOPIC, *both, third)
    assert tool.run("--list", "--principal", "User:b") == "ACLs for principal `User:b`\n" + current(TOPIC, third)
    assert tool.run("--remove", "--force", "--topic", "t", *denied) == ""
    assert tool.run("--list", "--topic", "t") == current(TOPIC, *both)
    assert tool.run("--remove", "--force", "--topic", "t") == ""
    assert tool.run("--list", "--topic", "t") == ""


def test_roles(tool: Tool) -> None:
    tool.run("--add", "--producer", "--consumer", "--idempotent", "--topic", "t", "--group", "t",
             "--transactional-id", "t", "--allow-principal", "User:a")  # fmt: skip
    assert tool.run("--list") == (
        current(TOPIC, *(entry("User:a", each) for each in ("CREATE", "DESCRIBE", "READ", "WRITE")))
        + current(TOPIC.replace("TOPIC", "GROUP"), entry("User:a", "READ"))
        + current(
            "ResourcePattern(resourceType=CLUSTER, name=kafka-cluster, patternType=LITERAL)",
            entry("User:a", "IDEMPOTENT_WRITE"),
        )
        + current(TOPIC.replace("TOPIC", "TRANSACTIONAL_ID"), entry("User:a", "DESCRIBE"), entry("User:a", "WRITE"))
    )


def test_patterns(tool: Tool) -> None:
    tool.run("--add", "--topic", "t", "--resource-pattern-type", "prefixed", "--allow-principal", "User:a")
    prefixed = current(TOPIC.replace("LITERAL", "PREFIXED"), entry("User:a", "ALL"))
    assert tool.run("--list", "--topic", "t-1", "--resource-pattern-type", "match") == prefixed
    assert tool.run("--list", "--topic", "t-1", "--resource-pattern-type", "any") == ""
    assert tool.run("--list", "--topic", "t") == ""


def test_asks_before_it_removes(tool: Tool, address: str) -> None:
    tool.run("--add", "--topic", "t", "--allow-principal", "User:a")
    command = [sys.executable, "-m", "tools.acls", "--bootstrap-server", address, "--remove", "--topic", "t"]
    for answer, left in (("n\n", current(TOPIC, entry("User:a", "ALL"))), ("Y\n", "")):
        result = subprocess.run(command, input=answer, capture_output=True, text=True, timeout=60, check=True)
        assert result.stdout == f"Are you sure you want to delete all ACLs for resource filter `{TOPIC}`? (y/n)\n"
        assert tool.run("--list") == left


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Command must include exactly one action: --list, --add, --remove. "),
        (["--list", "--add"], "Command must include exactly one action: --list, --add, --remove. "),
        (["--add", "--allow-principal", "User:a"], "You must provide at least one resource: --topic <topic> or"),
        (["--add", "--topic", "t"], "You must specify one of: --allow-principal, --deny-principal when trying to add"),
        (["--list", "--allow-principal", "User:a"], 'Option "[list]" can\'t be used with option "[allow-principal]"'),
        (["--add", "--producer", "--group", "g"], "With --producer you must specify a --topic"),
        (["--add", "--consumer", "--topic", "t"], "With --consumer you must specify a --topic and a --group"),
        (["--add", "--topic", "t", "--idempotent"], "The --idempotent option is only available if --producer is set"),
        (["--add", "--topic", "t", "--principal", "User:a"], "The --principal option is only available if"),
        (
            ["--add", "--topic", "t", "--allow-principal", "User:a", "--operation", "ClusterAction"],
            "ResourceType TOPIC only supports operations READ, WRITE",
        ),
        (
            ["--add", "--topic", "t", "--allow-principal", "User:a", "--resource-pattern-type", "match"],
            "A '--resource-pattern-type' value of 'MATCH' is not valid when adding acls.",
        ),
        (["--list", "--topic", "t", "--resource-pattern-type", "x"], "Cannot parse argument 'x' of option"),
        (["--add", "--topic", "t", "--allow-principal", "a"], "expected a string in format principalType:"),
    ],
)  # fmt: skip
def test_mistakes(tool: Tool, arguments: list[str], message: str) -> None:
    assert message in tool.run(*arguments, code=1)


def test_a_refusal_of_the_broker(tool: Tool) -> None:
    said = tool.run("--add", "--topic", "a/b", "--allow-principal", "User:a", code=1)
    assert said.endswith("\nError while executing ACL command: "
                         "org.apache.kafka.common.errors.InvalidRequestException: Failed to create ACL\n")  # fmt: skip
