"""The tools that move replicas and leaders, Kafka's and ours, in a cluster of both brokers with either as controller.

Both run the same steps, each on separate topics. Standard output, without the Java stacks, and the exit code must be
equal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.waiting import eventually
from tests.tools.cluster.mixed_brokers import APACHE, NOBODY, ODRADEK, Cluster
from tests.tools.tool_pair import Answer, Runner, lines_of

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]


class Side:
    """A runner of tools, their output, and its topics."""

    def __init__(self, runner: Runner, cluster: Cluster, scratch: Path) -> None:
        self.cluster = cluster
        self.said: list[tuple[str, Any]] = []
        self._runner = runner
        self._scratch = scratch

    def topic(self, name: str) -> str:
        """The name of this side's topic."""
        return f"{self._runner.side}-{name}"

    def file(self, content: object) -> str:
        """A file with this as JSON, or with this text; returns its path."""
        path = self._scratch / f"{self._runner.side}-{len(self.said)}.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    def run(self, tool: str, *args: str) -> Answer:
        """Run a tool with both brokers as bootstrap servers."""
        return self._runner.run(tool, [f"--bootstrap-server={self.cluster.addresses}", *args])

    def note(self, what: str, answer: Answer) -> Answer:
        """Record a tool's output, to be compared."""
        own = re.compile(rf"\b{self._runner.side}-(?=[a-z0-9])")
        self.said.append(
            (what, (answer.code, [own.sub("", line) for line in lines_of(answer)], bool(answer.stderr.strip())))
        )
        return answer

    def say(self, tool: str, *args: str) -> Answer:
        """Run a tool, and record its output."""
        return self.note(f"{tool} {' '.join(args)}".replace(str(self._scratch), ""), self.run(tool, *args))

    def reassign(self, action: str, content: object, *args: str) -> Answer:
        """Run kafka-reassign-partitions with this as its file."""
        answer = self.run("reassign_partitions", action, "--reassignment-json-file", self.file(content), *args)
        return self.note(f"{action} {content} {args}", answer)

    def await_end(self, content: object, *args: str) -> Answer:
        """Verify a reassignment until nothing is in progress; the final output is compared."""
        path = self.file(content)
        answer = eventually(
            "the end of the reassignment",
            lambda: self.run("reassign_partitions", "--verify", "--reassignment-json-file", path, *args),
            # "rather than": not all brokers know of the end yet.
            lambda answer: not any(words in answer.stdout for words in ("in progress", "rather than")),
        )
        return self.note(f"the end of {content}", answer)

    def await_throttles(self, kind: str, name: str, holds: Callable[[list[str]], bool]) -> list[str]:
        """Describe an entity until its throttles are as wanted: a broker learns of its configuration from ZooKeeper
        later.
        """

        def throttles() -> list[str]:
            described = self.run("configs", "--describe", "--entity-type", kind, "--entity-name", name)
            return sorted(re.findall(r"\w+\.replication\.throttled\.\w+=\S+", described.stdout))

        return eventually(f"the throttles of {kind} {name}", throttles, holds)


def assignment_of(*partitions: tuple[str, int, list[int]], log_dirs: list[str] | None = None) -> dict[str, Any]:
    """The content of a --reassignment-json-file."""
    entries: list[dict[str, Any]] = [
        {"topic": topic, "partition": partition, "replicas": replicas} for topic, partition, replicas in partitions
    ]
    for entry in entries:
        if log_dirs is not None:
            entry["log_dirs"] = log_dirs
    return {"version": 1, "partitions": entries}


@pytest.fixture(scope="module", params=[APACHE, ODRADEK], ids=["apache-kafka", "odradek"])
def controlled(request: pytest.FixtureRequest, cluster: Cluster) -> Cluster:
    """The cluster, first with Apache Kafka as the controller, then with Odradek."""
    cluster.elect_controller(request.param)
    return cluster


@pytest.fixture
def sides(controlled: Cluster, kafkas: Runner, ours: Runner, tmp_path: Path) -> tuple[Side, Side]:
    """Kafka's tools and ours, in a cluster without topics."""
    for name in controlled.admin.list_topics(timeout=5).topics:
        controlled.admin.delete_topics([name])[name].result()
        eventually(f"{name} is gone", lambda: not controlled.zookeeper.exists(f"/brokers/topics/{name}"))  # noqa: B023
    return Side(kafkas, controlled, tmp_path), Side(ours, controlled, tmp_path)


def compare(sides: tuple[Side, Side]) -> None:
    """Both have printed the same, step by step."""
    theirs, mine = sides
    assert len(theirs.said) == len(mine.said)
    differences = [
        f"{what}\n  Kafka's: {expected}\n  ours:    {actual}"
        for (what, expected), (_, actual) in zip(theirs.said, mine.said, strict=True)
        if expected != actual
    ]
    assert not differences, f"{len(differences)} of {len(mine.said)} differ:\n" + "\n".join(differences)


def test_command_lines(sides: tuple[Side, Side]) -> None:
    for side in sides:
        tool, path = "reassign_partitions", side.file(assignment_of(("t", 0, [0])))
        side.note("nothing", side._runner.run(tool, []))
        side.note("help", side._runner.run(tool, ["--list"]))
        side.say(tool)
        side.say(tool, "--list", "--verify")
        side.say(tool, "--verify")
        side.say(tool, "--generate", "--broker-list", "0")
        side.say(tool, "--list", "--throttle", "1")
        side.say(tool, "--verify", "--reassignment-json-file", path, "--throttle", "1")
        side.say(tool, "--execute", "--reassignment-json-file", path, "--preserve-throttles")
        side.say(tool, "--execute", "--reassignment-json-file", path, "--throttle", "abc")
        side.say(tool, "--execute", "--reassignment-json-file", "/no/such/file")
        side.say(tool, "--list")
        tool = "leader_election"
        side.note("nothing", side._runner.run(tool, ["--election-type", "preferred", "--all-topic-partitions"]))
        for args in (
            ["--all-topic-partitions"],
            ["--election-type", "preferred"],
            ["--election-type", "preferred", "--topic", "t"],
            ["--election-type", "preferred", "--partition", "0", "--all-topic-partitions"],
            ["--election-type", "preferred", "--topic", "t", "--partition", "0", "--all-topic-partitions"],
            ["--election-type", "dirty", "--all-topic-partitions"],
            ["--election-type", "preferred", "--topic", "nope", "--partition", "0"],
            ["--election-type", "unclean", "--topic", "nope", "--partition", "x"],
            ["--election-type", "PREFERRED", "--path-to-json-file", "/no/such/file"],
        ):
            side.say(tool, *args)
    compare(sides)


def test_files_that_make_no_sense(sides: tuple[Side, Side]) -> None:
    for side in sides:
        topic = side.topic("t")
        side.cluster.create_topic(topic, [APACHE])
        for content in (
            {"version": 2, "partitions": []},
            {"version": "1"},
            [],
            {"partitions": {}},
            {"partitions": []},
            {"partitions": [1]},
            {"partitions": [{"topic": topic, "partition": 0}]},
            {"partitions": [{"topic": 5, "partition": 0, "replicas": [0]}]},
            {"partitions": [{"topic": topic, "partition": "0", "replicas": [0]}]},
            assignment_of((topic, 0, [])),
            assignment_of((topic, 0, [APACHE]), (topic, 0, [ODRADEK])),
            assignment_of((topic, 0, [APACHE, APACHE])),
            assignment_of((topic, 0, [APACHE, 5])),
            assignment_of((topic, 1, [APACHE])),
            assignment_of((side.topic("nope"), 0, [APACHE])),
            assignment_of((topic, 0, [APACHE, ODRADEK]), log_dirs=["any"]),
            assignment_of((topic, 0, [APACHE]), log_dirs=["/no/such/directory"]),
        ):
            side.reassign("--execute", content)
        for content in ({"version": 2}, [], {"partitions": []}, assignment_of((topic, 0, [ODRADEK, APACHE]))):
            side.reassign("--verify", content, "--preserve-throttles")
            side.reassign("--cancel", content, "--preserve-throttles")
        for content, brokers in (
            ("nothing", "0"),
            ({"version": 3}, "0"),
            ({"topics": [{"name": topic}]}, "0"),
            ({"topics": [{"topic": topic}] * 2}, "0"),
            ({"topics": [{"topic": topic}]}, "0,0"),
            ({"topics": [{"topic": topic}]}, "a"),
            ({"topics": [{"topic": topic}]}, "5"),
            ({"topics": [{"topic": side.topic("nope")}]}, "0"),
            ({"topics": [{"topic": topic}]}, str(ODRADEK)),
        ):
            arguments = ["--generate", "--topics-to-move-json-file", side.file(content), "--broker-list", brokers]
            side.note(f"generate {content} {brokers}", side.run("reassign_partitions", *arguments))
        for content in ([], {}, {"partitions": [{"topic": topic, "partition": 0}] * 2}, {"partitions": [{}]}):
            arguments = ["--election-type", "preferred", "--path-to-json-file", side.file(content)]
            side.note(f"elect {content}", side.run("leader_election", *arguments))
    compare(sides)


def test_a_partition_moves_with_a_throttle(sides: tuple[Side, Side]) -> None:
    for side in sides:
        topic = side.topic("t")
        side.cluster.create_topic(topic, [APACHE], [ODRADEK])
        both = assignment_of((topic, 0, [ODRADEK, APACHE]), (topic, 1, [ODRADEK]))
        side.reassign("--execute", both, "--throttle", "100000")
        for entity in ("topics", topic), ("brokers", str(APACHE)):
            side.said.append(("throttles", side.await_throttles(*entity, bool)))
        side.await_end(both)
        side.cluster.await_in_sync(topic, [[ODRADEK, APACHE], [ODRADEK]])
        for entity in ("topics", topic), ("brokers", str(APACHE)):
            side.await_throttles(*entity, lambda found: not found)
        # The preferred leader of partition 0 is Odradek, which does not lead it yet.
        side.say("leader_election", "--election-type", "preferred", "--topic", topic, "--partition", "0")
        side.say("leader_election", "--election-type", "preferred", "--topic", topic, "--partition", "0")
        side.say("leader_election", "--election-type", "unclean", "--topic", topic, "--partition", "1")
        side.say("leader_election", "--election-type", "preferred", "--all-topic-partitions")
        away = assignment_of((topic, 0, [APACHE]), (topic, 1, [APACHE]))
        side.reassign("--execute", away)
        side.await_end(away, "--preserve-throttles")
        side.cluster.await_in_sync(topic, [[APACHE], [APACHE]])
    compare(sides)


def test_what_is_under_way_can_be_listed_and_cancelled(sides: tuple[Side, Side]) -> None:
    with sides[0].cluster.with_nobody():
        for side in sides:
            begin_change_and_cancel(side)
    compare(sides)


def begin_change_and_cancel(side: Side) -> None:
    """Reassignments to a broker that never answers."""
    topic = side.topic("t")
    side.cluster.create_topic(topic, [APACHE], [ODRADEK])
    away = assignment_of((topic, 0, [NOBODY]), (topic, 1, [NOBODY, ODRADEK]))
    side.reassign("--execute", away)
    side.say("reassign_partitions", "--list")
    side.reassign("--execute", away)
    side.reassign("--verify", away, "--preserve-throttles")
    further = assignment_of((topic, 0, [NOBODY, APACHE]))
    side.reassign("--execute", further, "--additional")
    side.say("reassign_partitions", "--list")
    other = assignment_of((topic, 0, [NOBODY, ODRADEK]), (topic, 1, [NOBODY, APACHE]))
    side.reassign("--execute", other, "--additional")
    side.say("reassign_partitions", "--list")
    side.reassign("--cancel", other, "--preserve-throttles")
    side.reassign("--cancel", other, "--preserve-throttles")
    side.cluster.await_in_sync(topic, [[APACHE], [ODRADEK]])
    side.reassign("--verify", other, "--preserve-throttles")


def test_replicas_move_between_directories(sides: tuple[Side, Side]) -> None:
    for side in sides:
        topic = side.topic("t")
        side.cluster.create_topic(topic, [APACHE])
        for broker in (ODRADEK, APACHE):
            for directory in side.cluster.log_dirs[broker]:
                there = assignment_of((topic, 0, [broker]), log_dirs=[directory])
                answer = side.run("reassign_partitions", "--execute", "--reassignment-json-file", side.file(there))
                side.note(f"execute {there}", answer)
                side.await_end(there, "--preserve-throttles")
                side.cluster.await_in_sync(topic, [[broker]])
                assert (Path(directory) / f"{topic}-0").is_dir()
        nowhere = assignment_of((topic, 0, [APACHE]), log_dirs=[side.cluster.log_dirs[APACHE][0]])
        side.reassign("--verify", nowhere, "--preserve-throttles")
        side.reassign("--cancel", nowhere, "--preserve-throttles")
    compare(sides)


def test_both_controllers_obey_what_older_tools_write(controlled: Cluster) -> None:
    """Without a tool of Kafka 2.3: its nodes, as written by `ZkData` of that version."""
    zookeeper, name = controlled.zookeeper, "old"

    def ask(path: str, partition: int, **more: list[int]) -> None:
        entry = {"topic": name, "partition": partition, **more}
        zookeeper.create(path, json.dumps({"version": 1, "partitions": [entry]}).encode())
        eventually(f"{path} is gone", lambda: not zookeeper.exists(path))

    zookeeper.create(f"/config/topics/{name}", b'{"version":1,"config":{"retention.ms":"77000"}}')
    zookeeper.create(f"/brokers/topics/{name}", b'{"version":1,"partitions":{"0":[%d]}}' % APACHE)
    controlled.await_in_sync(name, [[APACHE]])
    node = json.loads(zookeeper.get(f"/brokers/topics/{name}")[0])
    assert node["topic_id"]
    node["partitions"]["1"] = [ODRADEK, APACHE]
    zookeeper.set(f"/brokers/topics/{name}", json.dumps(node).encode())
    controlled.await_in_sync(name, [[APACHE], [ODRADEK, APACHE]])

    ask("/admin/reassign_partitions", 0, replicas=[ODRADEK, APACHE])
    controlled.await_in_sync(name, [[ODRADEK, APACHE]] * 2)
    for _ in range(2):
        ask("/admin/preferred_replica_election", 0)
        eventually(
            "the preferred leader",
            lambda: controlled.admin.list_topics(timeout=5).topics[name].partitions[0].leader,
            lambda leader: leader == ODRADEK,
        )
    ask("/admin/preferred_replica_election", 9)

    for deleted in (name, "nope"):
        zookeeper.create(f"/admin/delete_topics/{deleted}")
        eventually("the mark is gone", lambda: not zookeeper.get_children("/admin/delete_topics"))
    assert name not in zookeeper.get_children("/brokers/topics")
    directories = [Path(each) for paths in controlled.log_dirs.values() for each in paths]
    eventually("the replicas are gone", lambda: not any((each / f"{name}-0").exists() for each in directories))
