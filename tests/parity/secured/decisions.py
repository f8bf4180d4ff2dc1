"""Many decisions of our rules, of the naive model and of Kafka's AclAuthorizer, in one JVM.

`python -m tests.parity.secured.decisions --decisions 1000000` draws trees of ACLs, writes each to a ZooKeeper as our
broker does, and has all three answer the same questions, none of them twice for a tree.
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kazoo.client import KazooClient

from cluster.security.acl_rules import AclRules
from cluster.security.acl_znodes import PERSISTENT_PATHS, acl_path, encode_acls
from protocol.acl_types import AccessControlEntry, AclBinding, AclOperation, ResourcePattern, ResourceType
from tests.cluster.security.naive_acls import HOSTS, NAMES, PRINCIPALS, NaiveRules, draw_binding
from tests.kit.jars import QUICK_START, java, kafka_classpath
from tests.kit.zookeeper import real_zookeeper

PROGRAM = Path(__file__).with_name("java") / "AclDecisions.java"
TYPES = (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.DELEGATION_TOKEN,
    ResourceType.USER,
)  # fmt: skip
"""Resource types, each with separate ACLs."""
MOST_OF_A_TYPE = 12
SUPER_USERS = "User:carol;User:d:e"
ASKING = (*PRINCIPALS[:3], "User:carol", "User:d:e", "User:*")
OPERATIONS = tuple(each for each in AclOperation if each > AclOperation.ALL)
OF_A_TREE = 5000
"""Questions per tree, out of 6,480 possible ones."""


class Question(NamedTuple):
    """May a principal do it, with a resource or (without a name) with any of its type?"""

    principal: str
    host: str
    operation: AclOperation
    resource_type: ResourceType
    name: str | None

    def line(self) -> str:
        """The input line for the Java program."""
        kind, _, user = self.principal.partition(":")
        resource = [] if self.name is None else [self.name]
        return "\t".join([kind, user, self.host, self.operation.name, self.resource_type.name, *resource])


QUESTIONS = tuple(
    Question(*each) for each in itertools.product(ASKING, dict.fromkeys(HOSTS[:2]), OPERATIONS, TYPES, (*NAMES, None))
)


class Tree(NamedTuple):
    """A tree of ACLs in ZooKeeper, and the questions about it."""

    address: str
    bindings: tuple[AclBinding, ...]
    allows_unmentioned: bool
    questions: tuple[Question, ...]


def drawn_acls(draw: random.Random) -> list[AclBinding]:
    """ACLs of every type, with a limited number of each."""
    bindings = {}
    for number, resource_type in enumerate(TYPES):
        for _ in range(number * MOST_OF_A_TYPE // (len(TYPES) - 1)):
            pattern, entry = draw_binding(draw)
            bindings[AclBinding(pattern._replace(resource_type=resource_type), entry)] = None
    return list(bindings)


def lists_of(bindings: Iterable[AclBinding]) -> dict[ResourcePattern, list[AccessControlEntry]]:
    """The entries by their patterns."""
    lists: dict[ResourcePattern, list[AccessControlEntry]] = {}
    for pattern, entry in bindings:
        lists.setdefault(pattern, []).append(entry)
    return lists


def write_tree(client: KazooClient, path: str, bindings: Iterable[AclBinding]) -> None:
    """Write a tree below `path`, in one transaction."""
    transaction = client.transaction()
    transaction.create(path)
    for each in PERSISTENT_PATHS:
        transaction.create(path + each)
    for pattern, entries in lists_of(bindings).items():
        transaction.create(path + acl_path(pattern), encode_acls(entries))
    failed = [each for each in transaction.commit() if isinstance(each, Exception)]
    assert not failed, failed


def our_answers(rules: AclRules | NaiveRules, questions: Iterable[Question]) -> list[bool]:
    """The decisions of our rules, or of the model."""
    return [
        rules.allows_somewhere(each.principal, each.host, each.operation, each.resource_type)
        if each.name is None
        else rules.allows(each.principal, each.host, each.operation, each.resource_type, each.name)
        for each in questions
    ]


def kafkas_answers(trees: Iterable[Tree], timeout_s: float) -> list[bool]:
    """The decisions of Kafka's class, one tree after the other."""
    lines = []
    for tree in trees:
        lines.append("\t".join(["tree", tree.address, SUPER_USERS, str(tree.allows_unmentioned).lower()]))
        lines += [question.line() for question in tree.questions]
    done = subprocess.run(
        java(*QUICK_START, "-cp", kafka_classpath(), str(PROGRAM)),
        input="".join(f"{line}\n" for line in lines),
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    answers = [line == "ALLOWED" for line in done.stdout.splitlines() if line in {"ALLOWED", "DENIED"}]
    assert len(answers) == sum(len(tree.questions) for tree in trees), done.stderr[-3000:]
    return answers


def compare(tree: Tree, lists: dict[ResourcePattern, list[AccessControlEntry]], expected: list[bool]) -> int:
    """Fail for a decision that differs from Kafka's; returns the number of allowed ones. `lists` are the ACLs of our
    rules.
    """
    super_users = SUPER_USERS.split(";")
    rules = AclRules(super_users, allows_unmentioned=tree.allows_unmentioned)
    for pattern, entries in lists.items():
        rules.index.replace(pattern, entries)
    naive = NaiveRules(super_users, allows_unmentioned=tree.allows_unmentioned)
    naive.bindings = dict.fromkeys(tree.bindings)
    for which in (rules, naive):
        actual = our_answers(which, tree.questions)
        different = [
            (question, theirs)
            for question, theirs, mine in zip(tree.questions, expected, actual, strict=True)
            if theirs != mine
        ]
        assert not different, (type(which).__name__, tree.bindings, tree.allows_unmentioned, different[:5])
    return sum(expected)


def run(decisions: int, seed: int, directory: Path) -> tuple[int, int]:
    """Compare that many decisions; returns the numbers of trees and of allowed decisions."""
    draw = random.Random(seed)
    trees = []
    # Each tree is small and written by several processes: keeping it on disk would be most of the work.
    with real_zookeeper(directory, tick_time_ms=5000, settings={"forceSync": "no"}) as server:
        address = server.address
        client = KazooClient(address)
        client.start()
        try:
            for number, begin in enumerate(range(0, decisions, OF_A_TREE)):
                bindings = drawn_acls(draw)
                write_tree(client, f"/tree-{number}", bindings)
                questions = draw.sample(QUESTIONS, min(OF_A_TREE, decisions - begin))
                is_open = draw.random() < 0.5
                trees.append(Tree(f"{address}/tree-{number}", tuple(bindings), is_open, tuple(questions)))
        finally:
            client.stop()
            client.close()
        answers = kafkas_answers(trees, 60 + decisions / 500)
    allowed = at = 0
    for tree in trees:
        allowed += compare(tree, lists_of(tree.bindings), answers[at : at + len(tree.questions)])
        at += len(tree.questions)
    return len(trees), allowed


def main() -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity.secured.decisions", description=__doc__)
    parser.add_argument("--decisions", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        trees, allowed = run(arguments.decisions, arguments.seed, Path(directory))
    took_s = time.monotonic() - began_s
    print(
        f"{arguments.decisions:,} decisions on {trees} trees of seed {arguments.seed} are the same in all three, "
        f"{allowed:,} of them allow; {took_s:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
