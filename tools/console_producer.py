"""kafka-console-producer: send lines of standard input as records (Kafka class `ConsoleProducer`)."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping

from client.batches import RecordMetadata
from client.errors import ClientError
from client.producer import Producer
from client.settings import ProducerSettings
from protocol.errors import ApiError
from tools.support.common import (
    BOOTSTRAP_SERVER,
    ToolError,
    make_client,
    now_ms,
    parse_pairs,
    read_properties,
    reason,
    run_tool,
)
from tools.support.line_reader import DEFAULT_READERS, Line, LineReader, read_lines
from tools.support.options import Option, OptionParser, Options, UsageError
from tools.support.terminal import Progress

logger = logging.getLogger("org.apache.kafka.clients.producer.internals.ErrorLoggingCallback")

PARSER = OptionParser(
    "Write the lines of standard input to a topic.",
    [
        BOOTSTRAP_SERVER,
        Option("broker-list", "Deprecated name of --bootstrap-server.", "host:port,..."),
        Option("topic", "Required: the topic to write to.", "topic"),
        Option("sync", "Wait for each record to be acknowledged before the next is read."),
        Option(
            "compression-codec",
            "none, gzip, snappy, lz4 or zstd; gzip when no codec is named.",
            "codec",
            argument_optional=True,
        ),
        Option("batch-size", "Largest batch in bytes (batch.size).", "bytes", "Integer", default="16384"),
        Option("message-send-max-retries", "How often a batch is sent again (retries).", "n", "Integer", default="3"),
        Option("retry-backoff-ms", "Pause before that (retry.backoff.ms).", "ms", "Long", default="100"),
        Option("timeout", "How long to wait for a batch to fill (linger.ms).", "ms", "Long", default="1000"),
        Option("request-required-acks", "Acknowledgements to wait for (acks).", "acks", default="-1"),
        Option(
            "request-timeout-ms", "How long an answer may take (request.timeout.ms).", "ms", "Integer", default="1500"
        ),
        Option("metadata-expiry-ms", "When metadata is too old (metadata.max.age.ms).", "ms", "Long", default="300000"),
        Option("max-block-ms", "How long to wait for metadata or room (max.block.ms).", "ms", "Long", default="60000"),
        Option("max-memory-bytes", "How much to queue (buffer.memory).", "bytes", "Long", default="33554432"),
        Option(
            "max-partition-memory-bytes", "Largest batch in bytes (batch.size).", "bytes", "Integer", default="16384"
        ),
        Option("socket-buffer-size", "Size of send buffers (send.buffer.bytes).", "bytes", "Integer", default="102400"),
        Option("line-reader", "The class that reads lines; there is one.", "class", default=DEFAULT_READERS[0]),
        Option(
            "property",
            "A property for reading lines; may be repeated: parse.key, parse.headers, ignore.error (true or false), "
            "key.separator, headers.delimiter, headers.separator, headers.key.separator, null.marker.",
            "key=value",
        ),
        Option("reader-config", "A file with properties for reading lines.", "property file"),
        Option("producer-property", "A property for the producer; may be repeated.", "key=value"),
        Option("producer.config", "A file with properties for the producer.", "property file"),
    ],
)

_OPTION_OF = {
    "linger.ms": "timeout",
    "acks": "request-required-acks",
    "request.timeout.ms": "request-timeout-ms",
    "retries": "message-send-max-retries",
    "retry.backoff.ms": "retry-backoff-ms",
    "send.buffer.bytes": "socket-buffer-size",
    "metadata.max.age.ms": "metadata-expiry-ms",
    "max.block.ms": "max-block-ms",
    "buffer.memory": "max-memory-bytes",
    "batch.size": "batch-size",
}
"""Properties with an option: a given option overrides the property, its default does not."""


def check(options: Options) -> None:
    """Raise UsageError, OptionError or ToolError for missing options and invalid combinations."""
    if not options.has("bootstrap-server") and not options.has("broker-list"):
        raise UsageError("Missing required option(s) [bootstrap-server]")
    options.require("topic")
    for name in ("batch-size", "max-partition-memory-bytes", *_OPTION_OF.values()):
        if name != "request-required-acks":
            options.number(name)
    reader = options.required_text("line-reader")
    if reader not in DEFAULT_READERS:
        raise ToolError(f"There is no line reader {reader}")


def producer_properties(options: Options) -> dict[str, str]:
    """The properties of the producer. Raises ToolError, OSError, ConfigError."""
    path = options.text("producer.config")
    values = {
        "client.id": "console-producer",
        **(read_properties(path) if path is not None else {}),
        **parse_pairs(options.texts("producer-property")),
    }
    for name, option in _OPTION_OF.items():
        if options.has(option) or name not in values:
            values[name] = options.required_text(option)
    if options.has("max-partition-memory-bytes"):
        values["batch.size"] = options.required_text("max-partition-memory-bytes")
    if options.has("compression-codec"):
        values["compression.type"] = options.text("compression-codec") or "gzip"
    return values


def reader_properties(options: Options) -> Mapping[str, str]:
    """The properties of the line reader. Raises ToolError, OSError, ConfigError."""
    path = options.text("reader-config")
    return {**(read_properties(path) if path is not None else {}), **parse_pairs(options.texts("property"))}


async def work(options: Options) -> int:
    """Send lines until the end of standard input."""
    topic = options.required_text("topic")
    reader = LineReader(reader_properties(options))
    values = producer_properties(options)
    servers = options.text("bootstrap-server") or options.required_text("broker-list")
    prompt = _prompt if sys.stdin.isatty() else None
    async with (
        make_client(servers, values, client_id="console-producer") as client,
        Producer(client, ProducerSettings.parse(values), now_ms) as producer,
    ):
        with Progress("Sending", "records", prints=prompt is not None) as progress:
            async for text in read_lines(prompt):
                await _send(producer, topic, reader.parse(text), wait=options.has("sync"))
                progress.advance()
    return 0


def _prompt() -> None:
    print(">", end="", flush=True)


async def _send(producer: Producer, topic: str, line: Line, *, wait: bool) -> None:
    """Send a line. Without `wait`, an error is only printed."""
    try:
        delivery = await producer.send(topic, line.value, line.key, line.headers)
        if wait:
            await delivery
            return
    except (ApiError, ClientError) as error:
        if wait:
            raise
        _tell_failure(topic, line, error)
        return
    delivery.add_done_callback(lambda future: _tell_outcome(topic, line, future))


def _tell_outcome(topic: str, line: Line, delivery: asyncio.Future[RecordMetadata]) -> None:
    error = None if delivery.cancelled() else delivery.exception()
    if error is not None:
        _tell_failure(topic, line, error)


def _tell_failure(topic: str, line: Line, error: BaseException) -> None:
    key = "null" if line.key is None else f"{len(line.key)} bytes"
    value = "null" if line.value is None else f"{len(line.value)} bytes"
    logger.error(
        "Error when sending message to topic %s with key: %s, value: %s with error: %s",
        topic,
        key,
        value,
        reason(error),
    )


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, check, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
