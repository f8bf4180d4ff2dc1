"""kafka-reassign-partitions: move partitions between brokers and disks (Kafka class `ReassignPartitionsCommand`).

Kafka's tool does not cancel a reassignment that only adds replicas; this one does. Topics are in the order of the file;
Kafka's order is that of a Java hash map.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from random import randrange

from client.kafka_client import KafkaClient
from client.metadata import Metadata
from client.replica_admin import Outcomes, alter_reassignments, list_reassignments
from protocol.errors import ApiError, ErrorCode
from protocol.replica_assignment import assign_replicas, refuse_mixed_racks
from protocol.topic_partition import TopicPartition
from tools.reassignment import reassignment_throttles as throttles
from tools.reassignment.directory_moves import TerseError, is_done, start_moves, state_text, whereabouts
from tools.reassignment.reassignment_file import (
    Assignment,
    ReassignmentFile,
    duplicates,
    format_reassignment,
    parse_reassignment,
    parse_topics,
)
from tools.support.common import BOOTSTRAP_SERVER, COMMAND_CONFIG, ToolError, admin_client, reason, run_tool
from tools.support.error_texts import exception_text
from tools.support.message_json import read_file
from tools.support.options import Option, OptionParser, Options, UsageError

ALWAYS = ("help", "version", "bootstrap-server", "command-config")
REQUIRED = {
    "generate": ("topics-to-move-json-file", "broker-list"),
    "execute": ("reassignment-json-file",),
    "verify": ("reassignment-json-file",),
    "cancel": ("reassignment-json-file",),
    "list": (),
}
"""The actions and their required options."""
PERMITTED = {
    "generate": ("disable-rack-aware",),
    "execute": ("additional", "throttle", "replica-alter-log-dirs-throttle", "timeout"),
    "verify": ("preserve-throttles",),
    "cancel": ("preserve-throttles", "timeout"),
    "list": (),
}
"""Optional options of each action."""

PARSER = OptionParser(
    "Move partitions to other brokers and log directories.",
    [
        BOOTSTRAP_SERVER,
        COMMAND_CONFIG,
        Option("generate", "Propose an assignment of topics to brokers; nothing is changed."),
        Option("execute", "Begin to move partitions as the --reassignment-json-file says."),
        Option("verify", "Show how far that is. When all is done, the throttles are removed."),
        Option("cancel", "Go back to where the partitions were."),
        Option("list", "List all reassignments that are going on."),
        Option(
            "reassignment-json-file",
            'A file with {"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", '
            '"/data"]}], "version": 1}; log_dirs may be left out, "any" leaves the directory to the broker.',
            "json file",
        ),
        Option(
            "topics-to-move-json-file",
            'With --generate: a file with {"topics": [{"topic": "t"}], "version": 1}.',
            "json file",
        ),
        Option("broker-list", "With --generate: the brokers to place the topics on, separated by commas.", "brokers"),
        Option("disable-rack-aware", "With --generate: place replicas without regard to racks."),
        Option(
            "throttle",
            "With --execute: bytes per second that may be copied between brokers, at least 1 KB/s. To change it, "
            "execute the same file again with --additional.",
            "bytes/s",
            "Long",
            "-1",
        ),
        Option(
            "replica-alter-log-dirs-throttle",
            "The same for copies between the log directories of a broker.",
            "bytes/s",
            "Long",
            "-1",
        ),
        Option(
            "timeout",
            "How long --execute tries to begin moves to other log directories, in milliseconds.",
            "ms",
            "Long",
            "10000",
        ),
        Option("additional", "With --execute: begin although other reassignments are going on."),
        Option("preserve-throttles", "With --verify, --cancel: leave all throttles as they are."),
    ],
)


def check(options: Options) -> None:
    """Raise UsageError for invalid combinations of options."""
    actions = [action for action in REQUIRED if options.has(action)]
    if len(actions) != 1:
        listed = ", ".join(f"--{action}" for action in REQUIRED)
        raise UsageError(f"Command must include exactly one action: {listed}")
    (action,) = actions
    if not options.has("bootstrap-server"):
        raise UsageError("Please specify --bootstrap-server")
    options.require(*REQUIRED[action])
    allowed = {action, *ALWAYS, *REQUIRED[action], *PERMITTED[action]}
    for name in PARSER.options:
        if options.has(name) and name not in allowed:
            raise UsageError(f'Option "[{name}]" can\'t be used with action "[{action}]"')


async def work(options: Options) -> int:
    """Run the requested action."""
    async with admin_client(options, client_id="reassign-partitions-tool") as client:
        if options.has("list"):
            await show(client)
        elif options.has("generate"):
            await generate(client, options)
        else:
            wanted = parse_reassignment(read_file(options.required_text("reassignment-json-file")))
            if options.has("execute"):
                await execute(client, options, wanted)
            elif options.has("verify"):
                await verify(client, wanted, preserve_throttles=options.has("preserve-throttles"))
            else:
                await cancel(client, options, wanted)
    return 0


async def show(client: KafkaClient) -> None:
    """Print the ongoing reassignments."""
    found = await list_reassignments(client)
    print("Current partition reassignments:" if found else "No partition reassignments found.")
    for name, moving in sorted(found.items()):
        adding = f" adding: {_joined(moving.adding)}." if moving.adding else ""
        removing = f" removing: {_joined(moving.removing)}." if moving.removing else ""
        print(f"{name}: replicas: {_joined(moving.replicas)}.{adding}{removing}")


# -- generate ----------------------------------------------------------------------------------------------------------


async def generate(client: KafkaClient, options: Options) -> None:
    """Print the current assignment, and a proposal over the brokers of --broker-list."""
    brokers = parse_brokers(options.required_text("broker-list"))
    topics = parse_topics(read_file(options.required_text("topics-to-move-json-file")))
    metadata = await describe(client, topics)
    racks = {
        node_id: None if options.has("disable-rack-aware") else node.rack
        for node_id, node in sorted(metadata.nodes.items())
        if node_id in brokers
    }
    try:
        refuse_mixed_racks(racks)
    except ApiError as error:
        raise ToolError(error.message) from error
    current: Assignment = {}
    proposed: Assignment = {}
    for topic in topics:
        partitions = metadata.topics[topic].partitions
        current.update((TopicPartition(topic, number), each.replicas) for number, each in partitions.items())
        replication_factor = len(next(iter(partitions.values())).replicas)
        placed = place(racks, len(partitions), replication_factor)
        proposed.update((TopicPartition(topic, number), replicas) for number, replicas in enumerate(placed))
    print(f"Current partition replica assignment\n{format_reassignment(current)}\n")
    print(f"Proposed partition reassignment configuration\n{format_reassignment(proposed)}")


def place(racks: Mapping[int, str | None], partitions: int, replication_factor: int) -> Sequence[tuple[int, ...]]:
    """Replicas of a topic's partitions on these brokers, starting at a random one. Raises ToolError."""
    start, shift = (randrange(max(len(racks), 1)) for _ in range(2))  # noqa: S311
    try:
        return assign_replicas(racks, partitions, replication_factor, start_index=start, replica_shift=shift)
    except ApiError as error:
        raise ToolError(error.message) from None


def parse_brokers(text: str) -> list[int]:
    """The brokers in `1,2,3`. Raises ToolError."""
    brokers = []
    for part in text.split(","):
        try:
            brokers.append(int(part))
        except ValueError:
            raise ToolError(f'For input string: "{part}"') from None
    twice = duplicates(brokers)
    if twice:
        raise ToolError(f"Broker list contains duplicate entries: [{', '.join(map(str, twice))}]")
    return brokers


async def describe(client: KafkaClient, topics: Iterable[str]) -> Metadata:
    """The cluster with these topics. Raises ApiError for a topic that does not exist."""
    metadata = await client.describe_topics(list(topics))
    for name, topic in metadata.topics.items():
        if topic.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise ApiError(topic.error_code, f"Topic {name} not found.")
        if topic.error_code is not ErrorCode.NONE:
            raise ApiError(topic.error_code)
    return metadata


# -- execute -----------------------------------------------------------------------------------------------------------


async def execute(client: KafkaClient, options: Options, wanted: ReassignmentFile) -> None:
    """Start to move partitions, then replicas between directories."""
    proposed = wanted.assignment()
    throttle = options.required_number("throttle")
    log_dirs_throttle = options.required_number("replica-alter-log-dirs-throttle")
    timeout_ms = options.required_number("timeout")
    under_way = await list_reassignments(client)
    if under_way and not options.has("additional"):
        raise TerseError(
            "Cannot execute because there is an existing partition assignment.  Use --additional to override this and "
            "create a new partition assignment in addition to the existing one. The --additional flag can also be used "
            "to change the throttle by resubmitting the current reassignment."
        )
    current = await current_assignment(client, proposed)
    print(
        f"Current partition replica assignment\n\n{format_reassignment(current)}\n\n"
        "Save this to use as the --reassignment-json-file option during rollback"
    )
    if throttle >= 0 or log_dirs_throttle >= 0:
        print(
            "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is "
            "removed."
        )
    if throttle >= 0:
        await throttles.throttle_brokers(client, throttles.moves(under_way, proposed, current), throttle)
    if log_dirs_throttle >= 0:
        movers = [replica.broker_id for replica in wanted.directories]
        await throttles.throttle_directories(client, movers, log_dirs_throttle)
    refused = _refused(await alter_reassignments(client, proposed))
    if refused:
        raise TerseError(f"Error reassigning partition(s):\n{refused}")
    print(f"Successfully started partition reassignment{_plural(proposed)} for {_joined(sorted(proposed))}", flush=True)
    if wanted.directories:
        await start_moves(client, wanted.directories, timeout_ms)


async def current_assignment(client: KafkaClient, proposed: Assignment) -> Assignment:
    """The current replicas of the partitions of `proposed`. Raises ToolError and ApiError for missing ones."""
    known = (await client.describe_topics([])).nodes
    unknown = [each for replicas in proposed.values() for each in replicas if each not in known]
    if unknown:
        raise ToolError(f"Unknown broker id {min(unknown)}")
    metadata = await describe(client, dict.fromkeys(name.topic for name in proposed))
    current: Assignment = {}
    for name in proposed:
        partition = metadata.partition(*name)
        if partition is not None:
            current[name] = partition.replicas
    missing = [name for name in proposed if name not in current]
    if missing:
        text = f"Unable to find partition: {', '.join(map(str, missing))}"
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    return current


def _refused(outcomes: Outcomes) -> str:
    """One line for each refused partition."""
    return "\n".join(f"{name}: {reason(error)}" for name, error in sorted(outcomes.items()) if error is not None)


# -- verify and cancel -------------------------------------------------------------------------------------------------


async def verify(client: KafkaClient, wanted: ReassignmentFile, *, preserve_throttles: bool) -> None:
    """Print the progress; when all moves are done, remove the throttles."""
    under_way = await list_reassignments(client)
    targets = dict(wanted.partitions)
    rest = dict.fromkeys(name.topic for name in targets if name not in under_way)
    metadata = await client.describe_topics(list(rest))
    print("Status of partition reassignment:")
    for name, target in sorted(targets.items()):
        if name in under_way:
            print(f"Reassignment of partition {name} is still in progress.")
        else:
            print(_state_of(name, target, metadata))
    found = await whereabouts(client, wanted.directories)
    print("\n".join(state_text(each, wanted.directories[each], found[each]) for each in sorted(found)))
    if not under_way and all(map(is_done, found.values())) and not preserve_throttles:
        await _clear_throttles(client, wanted)


def _state_of(name: TopicPartition, target: tuple[int, ...], metadata: Metadata) -> str:
    partition = metadata.partition(*name)
    replicas = () if partition is None else partition.replicas
    if replicas == target:
        return f"Reassignment of partition {name} is completed."
    return (
        f"There is no active reassignment of partition {name}, but replica set is {_joined(replicas)} rather than "
        f"{_joined(target)}."
    )


async def cancel(client: KafkaClient, options: Options, wanted: ReassignmentFile) -> None:
    """Cancel the ongoing reassignments of the partitions, and the moves of replicas between directories."""
    timeout_ms = options.required_number("timeout")
    moving = await list_reassignments(client, dict.fromkeys(name for name, _ in wanted.partitions))
    if moving:
        outcomes = await alter_reassignments(client, dict.fromkeys(moving))
        refused = _refused(outcomes)
        if refused:
            failed = [name for name, error in outcomes.items() if error is not None]
            raise TerseError(f"Error cancelling partition reassignment{_plural(failed)} for:\n{refused}")
        print(f"Successfully cancelled partition reassignment{_plural(moving)} for: {_joined(sorted(moving))}")
    else:
        print("None of the specified partition reassignments are active.")
    found = await whereabouts(client, wanted.directories)
    back = {
        replica: each.current for replica, each in found.items() if each.current is not None and each.future is not None
    }
    if back:
        await start_moves(client, back, timeout_ms)
    else:
        # Without a line end, as in Kafka's tool.
        print("None of the specified partition moves are active.", end="")
    if not options.has("preserve-throttles"):
        await _clear_throttles(client, wanted)


async def _clear_throttles(client: KafkaClient, wanted: ReassignmentFile) -> None:
    """Clear the throttles on all brokers: the original brokers of the partitions are no longer known."""
    known = (await client.describe_topics([])).nodes
    named = (each for _, replicas in wanted.partitions for each in replicas)
    await throttles.clear_throttles(client, [*known, *named], wanted.topics)


def _joined(items: Iterable[object]) -> str:
    return ",".join(map(str, items))


def _plural(items: Mapping[TopicPartition, object] | list[TopicPartition]) -> str:
    return "" if len(items) == 1 else "s"


def fail(error: BaseException) -> None:
    """Print a failure on standard output, as Kafka's tool does."""
    if isinstance(error, TerseError):
        print(error)
    else:
        print(f"Error: {exception_text(error) if isinstance(error, ApiError) else reason(error)}")


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, check, work, fail=fail)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
