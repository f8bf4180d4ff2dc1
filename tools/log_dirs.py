"""kafka-log-dirs: show the size of each partition in each log directory, as JSON (Kafka class `LogDirsCommand`)."""

from __future__ import annotations

import json
import sys
from typing import Any

from client import admin
from protocol.errors import ErrorCode
from protocol.messages.log_dirs import DescribeLogDirsResponse
from tools.support.common import BOOTSTRAP_SERVER, COMMAND_CONFIG, ToolError, admin_client, run_tool
from tools.support.error_texts import exception_of
from tools.support.options import Option, OptionParser, Options

PARSER = OptionParser(
    "Show the log directories of brokers and the partitions in them.",
    [
        BOOTSTRAP_SERVER,
        COMMAND_CONFIG,
        Option("describe", "Required: show the log directories."),
        Option("topic-list", "Topics, separated by commas; all when it is not given.", "topics", default=""),
        Option("broker-list", "Broker ids, separated by commas; all when it is not given.", "brokers", default=""),
    ],
)


async def work(options: Options) -> int:
    """Print two lines of text and one of JSON."""
    topics = _split(options.required_text("topic-list"))
    texts = _split(options.required_text("broker-list"))
    if not all(text.isdigit() for text in texts):
        bad = next(text for text in texts if not text.isdigit())
        raise ToolError(f'For input string: "{bad}"')
    async with admin_client(options) as client:
        known = sorted((await client.describe_topics([])).nodes)
        brokers = list(map(int, texts)) or known
        missing = [broker for broker in brokers if broker not in known]
        if missing:
            raise ToolError(
                f"ERROR: The given brokers do not exist from --broker-list: {_join(missing)}. "
                f"Current existent brokers: {_join(known)}"
            )
        print("Querying brokers for log directories information")
        described = {broker: await admin.describe_log_dirs(client, broker) for broker in brokers}
    print(f"Received log directory information from brokers {_join(brokers)}")
    answer = {
        "brokers": [
            {"broker": broker, "logDirs": [_log_dir(each, set(topics)) for each in log_dirs]}
            for broker, log_dirs in described.items()
        ],
        "version": 1,
    }
    print(json.dumps(answer, separators=(",", ":"), ensure_ascii=False))
    return 0


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _join(brokers: list[int]) -> str:
    return ",".join(map(str, brokers))


def _log_dir(log_dir: DescribeLogDirsResponse.DescribeLogDirsResult, topics: set[str]) -> dict[str, Any]:
    return {
        "partitions": [
            {
                "partition": f"{topic.name}-{partition.partition_index}",
                "size": partition.partition_size,
                "offsetLag": partition.offset_lag,
                "isFuture": partition.is_future_key,
            }
            for topic in sorted(log_dir.topics, key=lambda topic: topic.name)
            if not topics or topic.name in topics
            for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
        ],
        "error": exception_of(ErrorCode.of(log_dir.error_code)) if log_dir.error_code else None,
        "logDir": log_dir.log_dir,
    }


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, lambda options: options.require("bootstrap-server", "describe"), work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
