"""kafka-acls: list, add and remove access control lists (Kafka class `AclCommand`).

Works only through a broker: it does not write ACLs to ZooKeeper behind the brokers' backs. ACLs are sorted by their
text; Kafka's order is that of a Java hash set.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import product

from client.kafka_client import KafkaClient
from client.security_admin import create_acls, delete_acls, describe_acls
from protocol.acl_types import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    AccessControlEntry,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermissionType,
    EntryFilter,
    PatternType,
    ResourceFilter,
    ResourcePattern,
    ResourceType,
    title,
)
from protocol.errors import ApiError
from tools.support.common import BOOTSTRAP_SERVER, COMMAND_CONFIG, ToolError, admin_client, reason, run_tool
from tools.support.error_texts import exception_text
from tools.support.line_reader import read_lines
from tools.support.options import Option, OptionError, OptionParser, Options, UsageError

Entries = dict[ResourceFilter, list[AccessControlEntry]]

CLUSTER = ResourceFilter(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)
ACTIONS = ("list", "add", "remove")
RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
    "delegation-token": ResourceType.DELEGATION_TOKEN,
    "user-principal": ResourceType.USER,
}
"""Options that name resources, besides --cluster."""
_OPERATIONS = {title(each).upper(): each for each in AclOperation if each >= AclOperation.ALL}
_NAMES = ", ".join(title(each) for each in _OPERATIONS.values())

PARSER = OptionParser(
    "List, add and remove access control lists.",
    [
        BOOTSTRAP_SERVER,
        COMMAND_CONFIG,
        Option("list", "Show ACLs: all, or those of the named resources."),
        Option("add", "Add ACLs to the named resources."),
        Option("remove", "Remove ACLs from the named resources: all of them, or those that the other options say."),
        Option("topic", "A topic; '*' for all topics.", "topic"),
        Option("group", "A consumer group; '*' for all groups.", "group"),
        Option("cluster", "The cluster."),
        Option("transactional-id", "A transactional id; '*' for all of them.", "transactional-id"),
        Option("delegation-token", "A delegation token; '*' for all tokens.", "delegation-token"),
        Option("user-principal", "A user for whom tokens are created or described.", "user-principal"),
        Option(
            "resource-pattern-type",
            "How names are meant: literal, prefixed; with --list and --remove also any (this name, either way) and "
            "match (every ACL that applies to a resource of this name).",
            "",
            default="LITERAL",
        ),
        Option("operation", f"The operation to allow or deny: {_NAMES}.", "", default="All"),
        Option("allow-principal", "The principal to allow, as User:name; User:'*' for all.", "allow-principal"),
        Option("deny-principal", "The principal to deny, whatever else allows it.", "deny-principal"),
        Option("allow-host", "The address from which --allow-principal is allowed; * by default.", "allow-host"),
        Option("deny-host", "The address from which --deny-principal is denied; * by default.", "deny-host"),
        Option("principal", "With --list: show the ACLs of this principal.", "principal"),
        Option("producer", "The rights of a producer: Write, Describe and Create on --topic."),
        Option("consumer", "The rights of a consumer: Read and Describe on --topic, Read on --group."),
        Option("idempotent", "With --producer: IdempotentWrite on the cluster."),
        Option("force", "Do not ask before something is removed."),
    ],
)


def check(options: Options) -> None:
    """Raise UsageError for missing options and invalid combinations."""
    options.require("bootstrap-server")
    if sum(map(options.has, ACTIONS)) != 1:
        raise UsageError("Command must include exactly one action: --list, --add, --remove. ")
    options.forbid(
        "list", "producer", "consumer", "allow-host", "allow-principal", "deny-host", "deny-principal"
    )  # fmt: skip
    for role in ("producer", "consumer"):
        options.forbid(role, "operation", "deny-principal", "deny-host")
    if options.has("principal") and not options.has("list"):
        raise UsageError("The --principal option is only available if --list is set")
    if options.has("producer") and not options.has("topic"):
        raise UsageError("With --producer you must specify a --topic")
    if options.has("idempotent") and not options.has("producer"):
        raise UsageError("The --idempotent option is only available if --producer is set")
    beside = not options.has("producer") and (options.has("cluster") or options.has("transactional-id"))
    if options.has("consumer") and (not options.has("topic") or not options.has("group") or beside):
        raise UsageError(
            "With --consumer you must specify a --topic and a --group and no --cluster or --transactional-id option "
            "should be specified."
        )


async def work(options: Options) -> int:
    """Run the requested action."""
    entries = {} if options.has("list") else _entries(options)
    if options.has("add"):
        _check_addition(options, entries)
    async with admin_client(options) as client:
        if options.has("add"):
            await _add(client, entries)
        elif options.has("remove"):
            await _remove(client, entries, asks=not options.has("force"))
        else:
            await _list(client, options)
    return 0


def _check_addition(options: Options, entries: Entries) -> None:
    if _pattern_type(options) < PatternType.LITERAL:
        shown = _pattern_type(options).name
        raise UsageError(f"A '--resource-pattern-type' value of '{shown}' is not valid when adding acls.")
    if not all(entries.values()):
        raise UsageError("You must specify one of: --allow-principal, --deny-principal when trying to add ACLs.")


async def _add(client: KafkaClient, added: Entries) -> None:
    for resource, entries in added.items():
        pattern = ResourcePattern(resource.resource_type, resource.name or "", resource.pattern_type)
        print(f"Adding ACLs for resource `{pattern}`: \n {_lines(entries)} \n")
        await create_acls(client, [AclBinding(pattern, each) for each in entries])


async def _remove(client: KafkaClient, removed: Entries, *, asks: bool) -> None:
    for resource, entries in removed.items():
        question = f"Are you sure you want to delete all ACLs for resource filter `{resource}`? (y/n)"
        if entries:
            question = (
                f"Are you sure you want to remove ACLs: \n {_lines(entries)} \n "
                f"from resource filter `{resource}`? (y/n)"
            )
        if asks and not await _is_confirmed(question):
            continue
        chosen = [EntryFilter(*each) for each in entries] or [EntryFilter()]
        await delete_acls(client, [AclFilter(resource, each) for each in chosen])


async def _is_confirmed(question: str) -> bool:
    print(question, flush=True)
    async for line in read_lines():
        return line.decode(errors="replace").strip().lower() == "y"
    return False


async def _list(client: KafkaClient, options: Options) -> None:
    found: dict[ResourcePattern, set[AccessControlEntry]] = {}
    for each in _resources(options) or [ResourceFilter()]:
        for pattern, entry in await describe_acls(client, AclFilter(each)):
            found.setdefault(pattern, set()).add(entry)
    principals = _principals(options, "principal")
    if not principals:
        _print(found)
    for principal in principals:
        print(f"ACLs for principal `{principal}`")
        _print(
            {pattern: [each for each in entries if each.principal == principal] for pattern, entries in found.items()}
        )


def _print(found: Mapping[ResourcePattern, Iterable[AccessControlEntry]]) -> None:
    for pattern in sorted(found):
        entries = list(found[pattern])
        if entries:
            print(f"Current ACLs for resource `{pattern}`: \n {_lines(entries)} \n")


def _lines(entries: Iterable[AccessControlEntry]) -> str:
    return "\n".join(f"\t{each}" for each in sorted(map(str, entries)))


# -- what the options mean ---------------------------------------------------------------------------------------------


def _entries(options: Options) -> Entries:
    """The ACL entries for each resource. Raises UsageError."""
    resources = _resources(options)
    if not resources:
        raise UsageError(
            "You must provide at least one resource: --topic <topic> or --cluster or --group <group> or "
            "--delegation-token <Delegation Token ID>"
        )
    entries: Entries = {}
    if options.has("producer"):
        writes = _of(options, AclOperation.WRITE, AclOperation.DESCRIBE)
        creates = _of(options, AclOperation.CREATE)
        entries |= {each: [*writes, *creates] for each in resources if each.resource_type is ResourceType.TOPIC}
        entries |= {each: writes for each in resources if each.resource_type is ResourceType.TRANSACTIONAL_ID}
        if options.has("idempotent"):
            entries[CLUSTER] = _of(options, AclOperation.IDEMPOTENT_WRITE)
    if options.has("consumer"):
        topic, group = _of(options, AclOperation.READ, AclOperation.DESCRIBE), _of(options, AclOperation.READ)
        of_types = {ResourceType.TOPIC: topic, ResourceType.GROUP: group}
        for each in resources:
            if each.resource_type in of_types:
                known = entries.get(each, [])
                entries[each] = list(dict.fromkeys([*known, *of_types[each.resource_type]]))
    if not options.has("producer") and not options.has("consumer"):
        operations = [_operation(text) for text in options.texts("operation")]
        entries = {each: _of(options, *operations) for each in resources}
    _check_operations(entries)
    return entries


def _check_operations(entries: Entries) -> None:
    for resource, each in entries.items():
        valid = (*SUPPORTED_OPERATIONS[resource.resource_type], AclOperation.ALL)
        if any(entry.operation not in valid for entry in each):
            names = ", ".join(operation.name for operation in valid)
            raise UsageError(f"ResourceType {resource.resource_type.name} only supports operations {names}")


def _of(options: Options, *operations: AclOperation) -> list[AccessControlEntry]:
    entries: list[AccessControlEntry] = []
    for option, permission in (("allow", AclPermissionType.ALLOW), ("deny", AclPermissionType.DENY)):
        principals = _principals(options, f"{option}-principal")
        hosts = [text.strip() for text in options.texts(f"{option}-host")] or [WILDCARD]
        entries.extend(
            AccessControlEntry(principal, host, operation, permission)
            for principal, operation, host in product(principals, dict.fromkeys(operations), dict.fromkeys(hosts))
        )
    return entries


def _principals(options: Options, option: str) -> list[str]:
    principals = list(dict.fromkeys(text.strip() for text in options.texts(option)))
    for each in principals:
        if ":" not in each:
            raise ToolError(f"expected a string in format principalType:principalName but got {each}")
    return principals


def _operation(text: str) -> AclOperation:
    return _OPERATIONS.get(text.strip().upper().replace("_", ""), AclOperation.UNKNOWN)


def _pattern_type(options: Options) -> PatternType:
    text = options.required_text("resource-pattern-type")
    known = {each.name: each for each in PatternType if each is not PatternType.UNKNOWN}
    found = known.get(text.upper())
    if found is None:
        raise OptionError(f"Cannot parse argument '{text}' of option resource-pattern-type")
    return found


def _resources(options: Options) -> list[ResourceFilter]:
    pattern_type = _pattern_type(options)
    resources = [
        ResourceFilter(resource_type, name.strip(), pattern_type)
        for option, resource_type in RESOURCES.items()
        for name in options.texts(option)
    ]
    if pattern_type is PatternType.LITERAL and (options.has("cluster") or options.has("idempotent")):
        resources.append(CLUSTER)
    return list(dict.fromkeys(resources))


def fail(error: BaseException) -> None:
    """Print a failure on standard output, as Kafka's tool does."""
    text = exception_text(error) if isinstance(error, ApiError) else reason(error)
    print(f"Error while executing ACL command: {text}")


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, check, work, fail=fail)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
