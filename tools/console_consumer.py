"""kafka-console-consumer: print the records of topics as lines (Kafka class `ConsoleConsumer`)."""

from __future__ import annotations

import logging
import random
import re
import sys

from client import admin
from client.consumer import Consumer
from client.errors import ClientError
from client.settings import ConsumerSettings
from protocol.errors import ApiError
from protocol.records.batch import Record, TimestampType
from protocol.topic_partition import TopicPartition
from tools.support.common import (
    BOOTSTRAP_SERVER,
    ToolError,
    make_client,
    parse_pairs,
    read_properties,
    reason,
    run_tool,
)
from tools.support.formatters import DEFAULT_FORMATTER, Formatter, make_formatter
from tools.support.options import Option, OptionParser, Options, UsageError
from tools.support.terminal import Progress

logger = logging.getLogger("org.apache.kafka.tools.consumer.ConsoleConsumer")

FOREVER_S = 1e9

PARSER = OptionParser(
    "Read topics and write the records to standard output.",
    [
        BOOTSTRAP_SERVER,
        Option("topic", "The topic to read.", "topic"),
        Option("include", "Regular expression for whole names of topics to read.", "regular expression"),
        Option("whitelist", "Deprecated name of --include.", "regular expression"),
        Option("partition", "Read this partition alone, from its end unless --offset says otherwise.", "n", "Integer"),
        Option("offset", "Where to begin in --partition: an offset, earliest or latest.", "offset", default="latest"),
        Option("from-beginning", "Begin with the first record when the group has not read the topic yet."),
        Option("max-messages", "End after this many records.", "n", "Integer"),
        Option("timeout-ms", "End when no record comes for this long.", "ms", "Long"),
        Option("group", "The group to read as.", "group id"),
        Option(
            "isolation-level",
            "read_committed leaves out records of transactions that are not committed.",
            "level",
            default="read_uncommitted",
        ),
        Option(
            "formatter", "How records are shown, by the class name it has in Kafka.", "class", default=DEFAULT_FORMATTER
        ),
        Option("formatter-config", "A file with properties for the formatter.", "property file"),
        Option(
            "property",
            "A property for the formatter; may be repeated: print.timestamp, print.key, print.offset, print.partition, "
            "print.headers, print.value (true or false), key.separator, line.separator, headers.separator, "
            "null.literal, key.deserializer, value.deserializer, headers.deserializer.",
            "key=value",
        ),
        Option("key-deserializer", "What keys are, by the class name in Kafka.", "class"),
        Option("value-deserializer", "What values are, by the class name in Kafka.", "class"),
        Option("skip-message-on-error", "Go on after a record that cannot be shown."),
        Option("consumer-property", "A property for the consumer; may be repeated.", "key=value"),
        Option("consumer.config", "A file with properties for the consumer.", "property file"),
        Option("enable-systest-events", "Say shutdown_complete at the end."),
    ],
)


def check(options: Options) -> None:
    """Raise UsageError for invalid combinations of options."""
    topics = [name for name in ("topic", "include", "whitelist") if options.has(name)]
    if "include" in topics and "whitelist" in topics:
        topics.remove("whitelist")
    if len(topics) != 1:
        raise UsageError("Exactly one of --include/--topic is required. ")
    if options.has("partition") and not options.has("topic"):
        raise UsageError("The topic is required when partition is specified.")
    if options.has("offset"):
        if not options.has("partition"):
            raise UsageError("The partition is required when offset is specified.")
        text = options.required_text("offset")
        if text.lower() not in {"earliest", "latest"} and not re.fullmatch(r"\d+", text):
            raise UsageError(
                f"The provided offset value '{text}' is incorrect. Valid values are 'earliest', 'latest', or a "
                "non-negative long."
            )
        if options.has("from-beginning"):
            raise UsageError("Options from-beginning and offset cannot be specified together.")
    options.require("bootstrap-server")
    if options.has("group") and options.has("partition"):
        raise UsageError("Options group and partition cannot be specified together.")
    for name in ("partition", "max-messages", "timeout-ms"):
        options.number(name)


def consumer_properties(options: Options, rng: random.Random) -> dict[str, str]:
    """The properties of the consumer. Raises UsageError, ToolError, OSError, ConfigError."""
    path = options.text("consumer.config")
    from_file = read_properties(path) if path is not None else {}
    from_options = parse_pairs(options.texts("consumer-property"))
    named = (options.text("group"), from_options.get("group.id"), from_file.get("group.id"))
    groups = list(dict.fromkeys(group for group in named if group is not None))
    if len(groups) > 1:
        shown = ", ".join(f"'{group}'" for group in groups)
        raise UsageError(
            "The group ids provided in different places (directly using '--group', via '--consumer-property', or via "
            f"'--consumer.config') do not match. Detected group ids: {shown}"
        )
    if groups and options.has("partition"):
        raise UsageError("Options group and partition cannot be specified together.")
    values = {"client.id": "console-consumer", **from_file, **from_options}
    values["isolation.level"] = options.required_text("isolation-level")
    reset = values.get("auto.offset.reset")
    if reset is not None and reset != "earliest" and options.has("from-beginning"):
        raise ToolError(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={reset}', please remove one option"
        )
    values.setdefault("auto.offset.reset", "earliest" if options.has("from-beginning") else "latest")
    if groups:
        values["group.id"] = groups[0]
    else:
        # A unique group that only this run uses.
        values["group.id"] = f"console-consumer-{rng.randrange(100_000)}"
        values.setdefault("enable.auto.commit", "false")
    return values


def formatter_of(options: Options) -> Formatter:
    """The formatter that the options select. Raises ToolError, OSError, ConfigError."""
    path = options.text("formatter-config")
    properties = {**(read_properties(path) if path is not None else {}), **parse_pairs(options.texts("property"))}
    for kind in ("key", "value"):
        class_name = options.text(f"{kind}-deserializer")
        if class_name:
            properties[f"{kind}.deserializer"] = class_name
    return make_formatter(
        options.required_text("formatter"), properties, lambda warning: print(warning, file=sys.stderr)
    )


class _Output:
    """Formats and counts the records for standard output."""

    def __init__(self, formatter: Formatter, limit: int | None, *, skip_on_error: bool) -> None:
        self.count = 0
        self._formatter = formatter
        self.limit = limit
        self._skip_on_error = skip_on_error

    def is_complete(self) -> bool:
        """Whether it has printed the requested number of records."""
        return self.limit is not None and self.count >= self.limit

    def format(self, record: Record, partition: int, timestamp_type: TimestampType) -> bytes:
        """Format one record. Raises ToolError if that fails and errors are not to be skipped."""
        self.count += 1
        try:
            return self._formatter.format(record, partition, timestamp_type)
        except ValueError as error:
            if not self._skip_on_error:
                raise ToolError(str(error)) from error
            logger.error("Error processing message, skipping this message: %s", error)
            return b""


async def work(options: Options) -> int:
    """Read until enough records have come, or none for too long."""
    rng = random.Random()  # noqa: S311  a group name, not a secret
    values = consumer_properties(options, rng)
    formatter = formatter_of(options)
    limit = options.number("max-messages")
    timeout_ms = options.number("timeout-ms")
    timeout_s = FOREVER_S if timeout_ms is None or timeout_ms < 0 else timeout_ms / 1000
    output = _Output(formatter, None if limit == -1 else limit, skip_on_error=options.has("skip-message-on-error"))
    client = make_client(options.required_text("bootstrap-server"), values, client_id="console-consumer")
    consumer = Consumer(client, ConsumerSettings.parse(values))
    try:
        await _choose_what_to_read(consumer, options)
        with Progress("Reading", "records", output.limit, prints=True) as progress:
            await _copy(consumer, output, timeout_s, progress)
    finally:
        await consumer.close()
        client.close()
        print(f"Processed a total of {output.count} messages", file=sys.stderr)
        if options.has("enable-systest-events"):
            print("shutdown_complete")
    return 0


def _pattern(expression: str) -> re.Pattern[str]:
    """The topics of --include. Raises ToolError for an invalid expression.

    Kafka's tool takes Java's regular expressions. Python lacks some of their syntax, such as `\\p{Alpha}`, `\\Q...\\E`
    and `&&` in classes.
    """
    try:
        return re.compile(expression)
    except re.error as error:
        raise ToolError(f"--include {expression}: invalid regular expression: {error}") from None


async def _choose_what_to_read(consumer: Consumer, options: Options) -> None:
    topic = options.text("topic")
    number = options.number("partition")
    if topic is None:
        consumer.subscribe_pattern(_pattern(options.text("include") or options.required_text("whitelist")))
    elif number is None:
        consumer.subscribe([topic])
    else:
        partition = TopicPartition(topic, number)
        consumer.assign([partition])
        offset = options.required_text("offset").lower()
        if offset.isdigit():
            consumer.seek(partition, int(offset))
        else:
            is_earliest = offset == "earliest" or options.has("from-beginning")
            consumer.seek_to_timestamp(partition, admin.EARLIEST_TIMESTAMP if is_earliest else admin.LATEST_TIMESTAMP)


async def _copy(consumer: Consumer, output: _Output, timeout_s: float, progress: Progress) -> None:
    while not output.is_complete():
        try:
            fetched = await consumer.poll_batches(timeout_s)
        except (ApiError, ClientError) as error:
            # Kafka's tool ends with exit code 0 whatever stops it.
            logger.error("Error processing message, terminating consumer process: %s", reason(error))
            return
        if not fetched:
            logger.error("Error processing message, terminating consumer process: no record in time")
            return
        for partition, batches in fetched.items():
            lines: list[bytes] = []
            try:
                for fetched_batch in batches:
                    for record in fetched_batch.records():
                        if output.is_complete():
                            # Fetched records that were not printed count as unread: the group continues with them.
                            consumer.seek(partition, record.offset)
                            break
                        lines.append(output.format(record, partition.partition, fetched_batch.batch.timestamp_type))
                    else:
                        continue
                    break
            finally:
                sys.stdout.buffer.write(b"".join(lines))
                sys.stdout.buffer.flush()
                progress.advance(len(lines))


def fail(error: BaseException) -> None:
    """Print a failure as Kafka's tool does."""
    if isinstance(error, (ApiError, ToolError)):
        logger.error("Unknown error when running consumer: %s", reason(error))
    else:
        print(reason(error), file=sys.stderr)


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, check, work, fail=fail)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
