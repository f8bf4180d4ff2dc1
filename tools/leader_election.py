"""kafka-leader-election: elect leaders of partitions (Kafka class `LeaderElectionCommand`).

Partitions are sorted by name; Kafka's order is that of a Java hash set.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from client.errors import ClientTimeoutError
from client.replica_admin import elect_leaders
from protocol.errors import ApiError, ErrorCode
from protocol.messages.reassignments import ElectionType
from protocol.topic_partition import TopicPartition
from tools.support.common import BOOTSTRAP_SERVER, ToolError, make_client, read_properties, reason, run_tool
from tools.support.error_texts import exception_text
from tools.support.message_json import json_array, json_object, member, read_file, scalar
from tools.support.options import Option, OptionError, OptionParser, Options

TIMEOUT_MS = 30_000
SCOPES = ("topic", "all-topic-partitions", "path-to-json-file")

PARSER = OptionParser(
    "Elect leaders: the preferred replicas, or where there is no leader, a replica that is not in sync.",
    [
        BOOTSTRAP_SERVER,
        Option("admin.config", "A file with properties for the client.", "property file"),
        Option(
            "election-type",
            'Required: "preferred" for the first replica of each partition that does not lead, "unclean" for any '
            "replica of a partition without a leader, which may lose records.",
            "election type",
        ),
        Option("all-topic-partitions", "All partitions that need an election."),
        Option("topic", "One topic, with --partition.", "topic"),
        Option("partition", "One partition of --topic.", "partition", "Integer"),
        Option("path-to-json-file", 'A file with {"partitions": [{"topic": "t", "partition": 0}]}.', "json file"),
    ],
)


def check(options: Options) -> None:
    """Raise ToolError for missing options and invalid combinations."""
    missing = [name for name in ("bootstrap-server", "election-type") if not options.has(name)]
    if missing:
        raise ToolError(f"Missing required option(s): {', '.join(missing)}")
    if sum(map(options.has, SCOPES)) != 1:
        raise ToolError(f"One and only one of the following options is required: {', '.join(SCOPES)}")
    if options.has("topic") and not options.has("partition"):
        raise ToolError("Missing required option(s): partition")
    if options.has("partition") and not options.has("topic"):
        raise ToolError("Option partition is only allowed if topic is used")


async def work(options: Options) -> int:
    """Elect, and print the partitions with a new leader, those that needed none, and the failures."""
    election_type = parse_election_type(options.required_text("election-type"))
    partitions = asked_partitions(options)
    path = options.text("admin.config")
    properties = {
        "default.api.timeout.ms": str(TIMEOUT_MS),
        "request.timeout.ms": str(TIMEOUT_MS // 2),
        **(read_properties(path) if path is not None else {}),
    }
    async with make_client(options.text("bootstrap-server"), properties) as client:
        try:
            outcomes = await elect_leaders(client, election_type, partitions)
        except ClientTimeoutError as error:
            raise _told("Timeout waiting for election results") from error
        except ApiError as error:
            if error.error_code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise _told("Not authorized to perform leader election") from error
            raise
    refusals = {name: refusal for name, refusal in sorted(outcomes.items()) if refusal is not None}
    elected = [name for name in sorted(outcomes) if name not in refusals]
    needless = [name for name, each in refusals.items() if each.error_code is ErrorCode.ELECTION_NOT_NEEDED]
    failed = {name: each for name, each in refusals.items() if name not in needless}
    kind = election_type.name
    if elected:
        print(f"Successfully completed leader election ({kind}) for partitions {_joined(elected)}")
    if needless:
        print(f"Valid replica already elected for partitions {_joined(needless)}")
    for name, refusal in failed.items():
        print(f"Error completing leader election ({kind}) for partition: {name}: {exception_text(refusal)}")
    if failed:
        raise ToolError(f"{len(failed)} replica(s) could not be elected")
    return 0


def _told(message: str) -> ToolError:
    """The error for this message, which it also prints on standard output."""
    print(message)
    return ToolError(message)


def parse_election_type(text: str) -> ElectionType:
    """The election type of that name. Raises OptionError."""
    try:
        return ElectionType[text.upper()]
    except KeyError:
        raise OptionError(f"Cannot parse argument '{text}' of option election-type") from None


def asked_partitions(options: Options) -> list[TopicPartition] | None:
    """The partitions that the options name, or None for all. Raises ToolError, OptionError."""
    path = options.text("path-to-json-file")
    if path is not None:
        return parse_partitions(read_file(path))
    if options.has("topic"):
        return [TopicPartition(options.required_text("topic"), options.required_number("partition"))]
    return None


def parse_partitions(text: str) -> list[TopicPartition]:
    """The partitions in a JSON file. Raises ToolError for any other form."""
    try:
        root = json_object(json.loads(text))
    except json.JSONDecodeError:
        raise ToolError("Replica election data is empty") from None
    if "partitions" not in root:
        raise ToolError('Replica election data is missing "partitions" field')
    partitions = [
        TopicPartition(scalar(member(each, "topic"), str), scalar(member(each, "partition"), int))
        for each in map(json_object, json_array(root["partitions"]))
    ]
    twice = [each for each in dict.fromkeys(partitions) if partitions.count(each) > 1]
    if twice:
        raise ToolError(f"Replica election data contains duplicate partitions: [{_joined(twice)}]")
    return partitions


def _joined(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))


def fail(error: BaseException) -> None:
    """Print a failure on standard error, as Kafka's tool does."""
    print(exception_text(error) if isinstance(error, ApiError) else reason(error), file=sys.stderr)


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, check, work, fail=fail)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
