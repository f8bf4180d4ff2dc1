"""kafka-delete-records: delete the records below given offsets (Kafka class `DeleteRecordsCommand`)."""

from __future__ import annotations

import json
import sys

from client import admin
from protocol.errors import ApiError
from protocol.topic_partition import TopicPartition
from tools.support.common import BOOTSTRAP_SERVER, COMMAND_CONFIG, ToolError, admin_client, run_tool
from tools.support.error_texts import exception_text
from tools.support.message_json import check_version, json_array, json_object, member, read_file, scalar
from tools.support.options import Option, OptionParser, Options

PARSER = OptionParser(
    "Delete the records of partitions below given offsets.",
    [
        BOOTSTRAP_SERVER,
        COMMAND_CONFIG,
        Option(
            "offset-json-file",
            'Required: a file with {"partitions": [{"topic": "t", "partition": 0, "offset": 5}], "version": 1}; '
            "-1 stands for everything that is replicated.",
            "json file",
        ),
    ],
)


async def work(options: Options) -> int:
    """Delete, and print each partition's new log start as soon as its leader answers."""
    offsets = parse_offsets(read_file(options.required_text("offset-json-file")))
    async with admin_client(options) as client:
        print("Executing records delete operation", flush=True)
        heading = ["Records delete operation completed:"]

        def show(partition: TopicPartition, outcome: int | ApiError) -> None:
            while heading:
                print(heading.pop())
            if isinstance(outcome, ApiError):
                print(f"partition: {partition}\terror: {exception_text(outcome)}", flush=True)
            else:
                print(f"partition: {partition}\tlow_watermark: {outcome}", flush=True)

        await admin.delete_records(client, offsets, show)
        while heading:
            print(heading.pop())
    return 0


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """The offsets in a JSON text. Raises ToolError for any form other than that shown in the help."""
    try:
        root = json.loads(text)
    except json.JSONDecodeError:
        raise ToolError("The input string is not a valid JSON") from None
    if not isinstance(root, dict):
        raise ToolError("The input string is not a valid JSON")
    check_version(root)
    if "partitions" not in root:
        raise ToolError("Missing partitions field")
    offsets: dict[TopicPartition, int] = {}
    twice: list[TopicPartition] = []
    for fields in map(json_object, json_array(root["partitions"])):
        partition = TopicPartition(scalar(member(fields, "topic"), str), scalar(member(fields, "partition"), int))
        if partition in offsets:
            twice.append(partition)
        offsets[partition] = scalar(member(fields, "offset"), int, "Long")
    if twice:
        raise ToolError(f"Offset json file contains duplicate topic partitions: {','.join(map(str, twice))}")
    return offsets


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, lambda options: options.require("bootstrap-server", "offset-json-file"), work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
