"""Deliberate bugs in the authorization: each must fail the tests listed with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.security.planted_bugs import Mutant, assert_caught
from tests.kit.due import due

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

INDEX, RULES = "cluster/security/acl_rules.py", "cluster/security/acl_rules.py"
TREE, AUTHORIZER = "broker/security/acl_tree.py", "broker/security/acl_authorizer.py"
FETCH, METADATA = "broker/handlers/fetch.py", "broker/handlers/metadata.py"
RIGHTS, HANDLERS = "broker/security/rights.py", "broker/handlers"
DECISIONS = "tests/cluster/security/test_acl_rules.py"
MATRIX, ACCESS = "tests/broker/security/test_guards.py", "tests/broker/security/test_access.py"
CLUSTER = "tests/broker/security/test_acls_of_a_cluster.py"
CVES = "tests/broker/security/test_cves.py"

MUTANTS = {
    "allowed wins over denied": Mutant(INDEX, "return allowed & ~denied", "return allowed", DECISIONS),
    "host ignored": Mutant(
        INDEX,
        "for where in (host, WILDCARD):\n                    f",
        "for _, where in list(table):\n                    f",
        DECISIONS,
    ),
    "User:* ignored": Mutant(
        INDEX,
        "for who in (principal, WILDCARD_PRINCIPAL):\n                for",
        "for who in (principal,):\n                for",
        DECISIONS,
    ),
    "prefix compared the wrong way": Mutant(
        INDEX,
        "found.extend(prefixed.get((resource_type, name[:length])) for length in lengths)",
        "found.extend(each for (kind, prefix), each in prefixed.items() if prefix.startswith(name) and lengths)",
        DECISIONS,
    ),
    "another type's wildcard": Mutant(
        INDEX,
        "found = [literal.get((resource_type, WILDCARD))]",
        "found = [literal.get((each, WILDCARD)) for each in ResourceType]",
        DECISIONS,
    ),
    "a literal list is a prefix": Mutant(
        INDEX,
        "            found.append(literal.get((resource_type, name)))\n",
        "            found.extend(each for (_, start), each in literal.items() if name.startswith(start))\n",
        DECISIONS,
    ),
    "denied implies": Mutant(
        INDEX, "denied |= bits | (", "denied |= bits | _ALSO_ALLOWED.get(operation, 0) | (", DECISIONS
    ),
    "allowed implies nothing": Mutant(
        INDEX, "allowed |= bits | _ALSO_ALLOWED.get(operation, 0)", "allowed |= bits", DECISIONS
    ),
    "unmentioned although others are mentioned": Mutant(
        RULES,
        "return matching.operations(principal, host)",
        "return matching.operations(principal, host) or (EVERY_OPERATION if self._allows_unmentioned else 0)",
        DECISIONS,
    ),
    "changes forgotten": Mutant(
        RULES, "    def changed(self) -> None:\n", "    def changed(self) -> None:\n        return\n", DECISIONS
    ),
    "wildcard denial ignored": Mutant(
        RULES, "if any(WILDCARD in each for each in denied):", "if not WILDCARD:", DECISIONS
    ),
    "gone lists stay": Mutant(
        AUTHORIZER,
        "{**dict.fromkeys(gone, ()), **found}",
        "{**dict.fromkeys(gone[:0], ()), **found}",
        f"{CLUSTER} -k heeded",
    ),
    "others' writes overwritten": Mutant(
        TREE,
        "SetData(path, encode_acls(wanted), version)",
        "SetData(path, encode_acls(wanted))",
        f"{CLUSTER} -k overwrites",
    ),
    "replica id without CLUSTER_ACTION": Mutant(
        FETCH,
        "            if not client.may_in_cluster(AclOperation.CLUSTER_ACTION):\n",
        "            if replica_id < 0:\n",
        f"{CVES} -k pretends",
    ),
    "a follower's session is everybody's": Mutant(
        FETCH, "replica_id >= 0 or self._sessions.is_of_follower(request.session_id)", "replica_id >= 0", ACCESS
    ),
    "denied records are read": Mutant(
        FETCH,
        "return [each for each in partitions if each.topic not in denied], refused",
        "return partitions, []",
        ACCESS,
    ),
    "missing topics look otherwise": Mutant(
        METADATA,
        "if not client.may(AclOperation.DESCRIBE, ResourceType.TOPIC, name):",
        "if name in image.topics and not client.may(AclOperation.DESCRIBE, ResourceType.TOPIC, name):",
        ACCESS,
    ),
    "transactional batches without a right": Mutant(
        f"{HANDLERS}/produce.py",
        "if not any(is_transactional(data.records) for topic in request.topic_data for data in topic.partition_data):",
        "if request.topic_data:",
        f"{CVES} -k transactional",
    ),
    "a hidden topic is named": Mutant(
        f"{HANDLERS}/topics.py", "None if asked_name is None and name in hidden else name", "name", ACCESS
    ),
    "transactions end without a right": Mutant(
        f"{HANDLERS}/transactions.py",
        "right=OnTransactionalId(AclOperation.WRITE, _refuse_to_end),",
        "right=lambda _, asked: asked.proceed(),",
        f"{MATRIX} -k END_TXN",
    ),
    "offsets in transactions without the group": Mutant(
        f"{HANDLERS}/transactional_offsets.py",
        "            OnGroup(AclOperation.READ, _refuse),\n",
        "",
        f"{MATRIX} -k right_is_enough",
    ),
    "members without READ": Mutant(
        f"{HANDLERS}/groups.py",
        "right=OnGroup(AclOperation.READ, _refuse_to_join)",
        "right=OnGroup(AclOperation.DESCRIBE, _refuse_to_join)",
        f"{MATRIX} -k right_is_enough",
    ),
    "an API without a guard": Mutant(
        RIGHTS,
        "if not isinstance(route.right, Unasked):",
        "if not isinstance(route.right, Unasked) and route.api_key != 11:",
        MATRIX,
    ),
    "an API unguarded by name": Mutant(
        f"{HANDLERS}/topics.py",
        "right=_guard_grow,",
        "right=lambda _, asked: asked.proceed(),",
        f"{MATRIX} -k CREATE_PARTITIONS",
    ),
}


@pytest.mark.parametrize("name", due(MUTANTS))
def test_bugs_are_caught(name: str, tmp_path: Path) -> None:
    assert_caught(name, MUTANTS[name], tmp_path)
