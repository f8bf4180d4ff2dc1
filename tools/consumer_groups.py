"""kafka-consumer-groups: list, describe and delete groups, and reset or delete their offsets (`ConsumerGroupCommand`).

Like Kafka's, it ends with exit code 0 even if a group fails: the error is on standard output, after `Error: `. Kafka
3.9 forgets line ends and topic names in some rows (--delete-offsets, --reset-offsets, --members --verbose); this tool
writes them, as other versions of Kafka do.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from client import groups
from client.groups import DescribedGroup
from client.kafka_client import KafkaClient
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from tools.support.common import BOOTSTRAP_SERVER, COMMAND_CONFIG, make_client, read_properties, reason, run_tool
from tools.support.error_texts import exception_of
from tools.support.group_reset import (
    RESET_TARGETS,
    parse_topic_arguments,
    partitions_of_topics,
    print_reset,
    reset_offsets,
)
from tools.support.group_tables import (
    MIN_WIDTH,
    MISSING,
    print_error,
    print_members,
    print_offsets,
    print_state,
    print_table,
)
from tools.support.options import Option, OptionParser, Options, UsageError

ACTIONS = ("list", "describe", "delete", "reset-offsets", "delete-offsets")
STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling")
TYPES = ("Consumer", "Classic")

PARSER = OptionParser(
    "List, describe and delete consumer groups, and reset their offsets.",
    [
        BOOTSTRAP_SERVER,
        COMMAND_CONFIG,
        Option("list", "List the groups."),
        Option("describe", "Show offsets and lag of groups, or their --members or --state."),
        Option("delete", "Delete groups that have no members."),
        Option("delete-offsets", "Delete the offsets of one group for --topic."),
        Option("reset-offsets", "Set the offsets of inactive groups; without --execute only show what would be set."),
        Option("group", "A group; may be repeated.", "group"),
        Option("all-groups", "All groups."),
        Option("topic", "A topic, with partitions as topic:0,1,2; may be repeated.", "topic"),
        Option("all-topics", "All topics that the group has offsets of."),
        Option("offsets", "With --describe: offsets and lag, which is the default."),
        Option("members", "With --describe: the members."),
        Option(
            "state",
            "With --describe: the state of the group. With --list: show states, of groups in these states only.",
            "",
            argument_optional=True,
        ),
        Option("type", "With --list: show types, of groups of these types only.", "", argument_optional=True),
        Option("verbose", "With --describe --members: show assignments."),
        Option("timeout", "How long to try.", "timeout (ms)", "Long", default="5000"),
        Option("to-earliest", "Reset to the first record."),
        Option("to-latest", "Reset to the end."),
        Option("to-current", "Reset to the offset that is committed."),
        Option("to-offset", "Reset to this offset.", "offset", "Long"),
        Option("shift-by", "Reset to the committed offset plus this, which may be negative.", "n", "Long"),
        Option("to-datetime", "Reset to the first record from this time on.", "YYYY-MM-DDTHH:mm:SS.sss"),
        Option("by-duration", "Reset to the first record of the last time.", "PnDTnHnMnS"),
        Option("from-file", "Reset to the offsets in a CSV file, as --export writes it.", "file"),
        Option("dry-run", "Show what would be set."),
        Option("execute", "Set it."),
        Option("export", "Show it as CSV."),
    ],
)


# -- the command line --------------------------------------------------------------------------------------------------


def check(options: Options) -> None:
    """Raise UsageError for invalid combinations of options."""
    options.require("bootstrap-server")
    has_group = options.has("group") or options.has("all-groups")
    if options.has("describe"):
        _check_describe(options, has_group)
    if sum(map(options.has, ACTIONS)) != 1:
        raise UsageError(
            "Command must include exactly one action: --list, --describe, --delete, --reset-offsets, --delete-offsets"
        )
    if options.has("delete"):
        if not has_group:
            raise UsageError("Option [delete] takes one of these options: [all-groups], [group]")
        if options.has("topic"):
            raise UsageError("The consumer does not support topic-specific offset deletion from a consumer group.")
    if options.has("delete-offsets") and not (options.has("group") and options.has("topic")):
        raise UsageError("Option [delete-offsets] takes the following options: [all-groups], [group]")
    if options.has("reset-offsets"):
        _check_reset(options, has_group)
    options.forbid("group", "all-groups", "list")
    if options.has("list"):
        wanted_states(options)
        wanted_types(options)
    parse_topic_arguments(options.texts("topic"))


def _check_describe(options: Options, has_group: bool) -> None:
    if not has_group or options.has("list"):
        raise UsageError("Option [describe] takes one of these options: [reset-offsets], [describe], [delete], [list]")
    if sum(map(options.has, ("members", "offsets", "state"))) > 1:
        raise UsageError("Option [describe] takes at most one of these options: [members], [offsets], [state]")
    if options.has("state") and options.text("state") is not None:
        raise UsageError("Option [describe] does not take a value for [state]")


def _check_reset(options: Options, has_group: bool) -> None:
    if options.has("dry-run") and options.has("execute"):
        raise UsageError("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
    if not options.has("dry-run") and not options.has("execute"):
        print(
            "WARN: No action will be performed as the --execute option is missing."
            "In a future major release, the default behavior of this command will be to prompt the user before "
            "executing the reset rather than doing a dry run. You should add the --dry-run option explicitly if you "
            "are scripting this command and want to keep the current default behavior without prompting.",
            file=sys.stderr,
        )
    if not has_group:
        raise UsageError("Option [reset-offsets] takes one of these options: [all-groups], [group]")
    given = [target for target in RESET_TARGETS if options.has(target)]
    if not given:
        shown = ", ".join(f"[{target}]" for target in RESET_TARGETS)
        raise UsageError(f"Option '[reset-offsets]' requires one of the following scenarios: [{shown}]")
    if len(given) > 1:
        raise UsageError(f'Option "[{given[0]}]" can\'t be used with option "[{given[1]}]"')
    if given != ["from-file"] and not options.has("topic") and not options.has("all-topics"):
        raise UsageError("One of the reset scopes should be defined: --all-topics, --topic.")


async def work(options: Options) -> int:
    """Run the requested action."""
    path = options.text("command-config")
    timeout_ms = options.required_number("timeout")
    values = {
        "default.api.timeout.ms": str(timeout_ms),
        "request.timeout.ms": str(min(timeout_ms, 30_000)),
        **(read_properties(path) if path is not None else {}),
    }
    async with make_client(options.text("bootstrap-server"), values) as client:
        if options.has("list"):
            await list_groups(client, options)
        elif options.has("describe"):
            await describe(client, options)
        elif options.has("delete"):
            await delete(client, options)
        elif options.has("delete-offsets"):
            await delete_offsets(client, options)
        else:
            print_reset(await reset_offsets(client, options, await chosen_groups(client, options)), options)
    return 0


async def chosen_groups(client: KafkaClient, options: Options) -> list[str]:
    """The groups of --group, or all, in order."""
    if options.has("all-groups"):
        return sorted(group.group_id for group in await consumer_groups(client))
    return list(dict.fromkeys(options.texts("group")))


async def consumer_groups(
    client: KafkaClient, states: Sequence[str] = (), types: Sequence[str] = ()
) -> list[groups.ListedGroup]:
    """The groups of consumers, without others such as Kafka Connect's."""
    listed = await groups.list_groups(client, states=states, types=types)
    return sorted(
        (group for group in listed if group.protocol_type in {"consumer", ""}), key=lambda group: group.group_id
    )


# -- list --------------------------------------------------------------------------------------------------------------


async def list_groups(client: KafkaClient, options: Options) -> None:
    """Print the groups, with types and states if requested."""
    with_state, with_type = options.has("state"), options.has("type")
    listed = await consumer_groups(client, wanted_states(options), wanted_types(options))
    if not with_state and not with_type:
        for group in listed:
            print(group.group_id)
        return
    width = max([MIN_WIDTH, *(len(group.group_id) for group in listed)]) + 10
    rows = [("GROUP", "TYPE", "STATE"), *((each.group_id, each.group_type, each.group_state) for each in listed)]
    for group_id, group_type, state in rows:
        cells = [f"{group_id:{width}}"]
        cells += [f"{group_type.capitalize() if group_type != 'TYPE' else group_type:20}"] if with_type else []
        cells += [f"{state:20}"] if with_state else []
        print(" ".join(cells))


def wanted_states(options: Options) -> list[str]:
    """The states in --state. Raises UsageError for an unknown one."""
    return _known_words(options.text("state"), STATES, "Invalid state list '{}'. Valid states are: {}")


def wanted_types(options: Options) -> list[str]:
    """The types in --type. Raises UsageError for an unknown one."""
    return _known_words(options.text("type"), TYPES, "Invalid types list '{}'. Valid types are: {}")


def _known_words(text: str | None, known: Sequence[str], complaint: str) -> list[str]:
    """The words of a list, in their canonical spelling. Raises UsageError for an unknown one."""
    if not text:
        return []
    by_lower = {word.lower(): word for word in known}
    words = [by_lower.get(word.strip().lower()) for word in text.split(",")]
    if None in words:
        raise UsageError(complaint.format(text, ", ".join(known)))
    return [word for word in words if word is not None]


# -- describe ----------------------------------------------------------------------------------------------------------


async def describe(client: KafkaClient, options: Options) -> None:
    """Print the offsets, members or state of each group."""
    for group_id in await chosen_groups(client, options):
        group, coordinator = await groups.describe_group(client, group_id)
        _tell_state(group)
        if options.has("members"):
            print_members(group, verbose=options.has("verbose"))
        elif options.has("state"):
            if group.group_state != "Dead":
                address = next((node.address for node in client.known_nodes() if node.node_id == coordinator), MISSING)
                print_state(group, f"{address}  ({coordinator})")
        elif group.group_state != "Dead":
            await print_offsets(client, group)


def _tell_state(group: DescribedGroup) -> None:
    if group.group_state == "Dead":
        print_error(f"Consumer group '{group.group_id}' does not exist.")
    elif group.group_state == "Empty":
        print(f"\nConsumer group '{group.group_id}' has no active members.", file=sys.stderr)
    elif group.group_state != "Stable":
        print(f"\nWarning: Consumer group '{group.group_id}' is rebalancing.", file=sys.stderr)


# -- delete ------------------------------------------------------------------------------------------------------------


async def delete(client: KafkaClient, options: Options) -> None:
    """Delete the groups, and print which ones."""
    failures: dict[str, ApiError] = {}
    chosen = await chosen_groups(client, options)
    for group_id in chosen:
        try:
            await groups.delete_group(client, group_id)
        except ApiError as error:
            failures[group_id] = error
    if not failures:
        print(f"Deletion of requested consumer groups ('{', '.join(chosen)}') was successful.")
        return
    print_error("Deletion of some consumer groups failed:")
    for group_id, failure in failures.items():
        print(
            f"* Group '{group_id}' could not be deleted due to: java.util.concurrent.ExecutionException: "
            f"{exception_of(failure.error_code)}: {reason(failure)}"
        )
    deleted = [f"'{group_id}'" for group_id in chosen if group_id not in failures]
    if deleted:
        print(f"\nThese consumer groups were deleted successfully: {', '.join(deleted)}")


_GROUP_ERRORS: Mapping[ErrorCode, str] = {
    ErrorCode.INVALID_GROUP_ID: "'{}' is not valid.",
    ErrorCode.GROUP_ID_NOT_FOUND: "'{}' does not exist.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Access to '{}' is not authorized.",
    ErrorCode.NON_EMPTY_GROUP: "'{}' is not empty.",
}


async def delete_offsets(client: KafkaClient, options: Options) -> None:
    """Delete offsets of one group, and print the result for each partition."""
    (group_id,) = options.texts("group")
    arguments = options.texts("topic")
    partitions, unknown = await partitions_of_topics(client, parse_topic_arguments(arguments))
    outcomes: dict[TopicPartition, ErrorCode] = {}
    failure = ErrorCode.NONE
    try:
        if partitions:
            outcomes = await groups.delete_offsets(client, group_id, partitions)
    except ApiError as error:
        failure = error.error_code
        outcomes = dict.fromkeys(partitions, failure)
    rows = [
        (partition.topic, str(partition.partition), outcomes.get(partition, ErrorCode.NONE))
        for partition in sorted(partitions)
    ]
    rows += [(topic, "Not Provided", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for topic in unknown]
    if failure in _GROUP_ERRORS:
        print_error(_GROUP_ERRORS[failure].format(group_id))
    elif failure:
        print_error(f"Encounter some unknown error: {failure.name}")
    elif any(outcomes.values()):
        print_error("Encounter some partition level error, see the follow-up details:")
    else:
        print(f"Request succeed for deleting offsets with topic {', '.join(arguments)} group {group_id}")
    shown = [
        (topic, partition, f"Error: :{exception_of(code)}: {reason(ApiError(code))}" if code else "Successful")
        for topic, partition, code in rows
    ]
    print_table([("TOPIC", "PARTITION", "STATUS"), *shown], [30, 15, 15])


def fail(error: BaseException) -> None:
    """Print a failure as Kafka's tool does."""
    shown = reason(error)
    if isinstance(error, ApiError):
        shown = f"java.util.concurrent.ExecutionException: {exception_of(error.error_code)}: {shown}"
    print_error(f"Executing consumer group command failed due to {shown}")


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, check, work, fail=fail, failure_code=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
