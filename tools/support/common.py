"""Shared parts of the tools: start and end, client, property files."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, TextIO

from client.errors import ClientError
from client.kafka_client import KafkaClient
from client.settings import ClientSettings
from config.definitions import ConfigError
from config.properties import load_properties, resolve
from odradek import __version__
from protocol.errors import ApiError
from security.openssl_files import read_bytes
from tools.support.error_texts import message_of
from tools.support.options import Option, OptionError, OptionParser, Options, UsageError, is_own_command

BOOTSTRAP_SERVER = Option(
    "bootstrap-server", "Required: the brokers to connect to. `odradek NAME` takes 127.0.0.1:9092.", "host:port,..."
)
COMMAND_CONFIG = Option("command-config", "A file with properties for the client.", "property file")

BOOTSTRAP_TIMEOUT_MS: Final = 10_000
"""How long `odradek NAME` looks for a broker, unless default.api.timeout.ms is set in --command-config."""

Work = Callable[[Options], Awaitable[int]]


class ToolError(Exception):
    """A tool cannot do the requested action; the message says why."""


FAILURES = (ToolError, OptionError, ApiError, ClientError, ConfigError, OSError)
"""Errors that end a tool with one line and exit code 1; any other is a bug and shows its traceback."""


def reason(error: BaseException) -> str:
    """Kafka's text for an error: the message without the code, if it has one."""
    if isinstance(error, ApiError):
        return error.message or message_of(error.error_code)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} ({error.strerror})"
    return str(error)


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def run_tool(
    argv: list[str],
    parser: OptionParser,
    check: Callable[[Options], None],
    work: Work,
    *,
    fail: Callable[[BaseException], None] | None = None,
    failure_code: int = 1,
) -> int:
    """Parse, check and run; returns the exit code.

    Help and mistakes on the command line go to standard error with exit code 1, as with Kafka's tools. As `odradek
    NAME`, help goes to standard output with exit code 0, and a mistake does not list all options. `fail` prints an
    error of the work itself, by default as one line on standard error; the exit code is then `failure_code`.
    """
    try:
        options = parser.parse(argv)
        if options.has("help") or not argv:
            is_asked_for = is_own_command() and options.has("help")
            print(parser.purpose, parser.format_help(), sep="\n", file=sys.stdout if is_asked_for else sys.stderr)
            return 0 if is_asked_for else 1
        if options.has("version"):
            print(f"{__version__} (Odradek)")
            return 0
        check(options)
    except UsageError as error:
        shown = (
            f"`{os.environ['ODRADEK_COMMAND']} --help` shows the options." if is_own_command() else parser.format_help()
        )
        print(error, shown, sep="\n", file=sys.stderr)
        return 1
    except (OptionError, ToolError) as error:
        print(error, file=sys.stderr)
        return 1
    return run_work(lambda: work(options), fail=fail, failure_code=failure_code)


class _Warnings(logging.StreamHandler[TextIO]):
    """Shows a repeated warning, such as one about an unreachable broker, as one line. On a terminal the line shows how
    long it has been repeated.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[str, float] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, unless it repeats the last one."""
        text = record.getMessage()
        if self._last is None or self._last[0] != text:
            self._last = (text, record.created)
            super().emit(record)
        elif self.stream.isatty():
            self.stream.write(f"\x1b[1A\x1b[2K{self.format(record)} for {record.created - self._last[1]:.0f} s\n")
            self.flush()


def _log_to_stderr() -> None:
    # Kafka's tools and the broker write WARN.
    logging.addLevelName(logging.WARNING, "WARN")
    layout = "[%(asctime)s] %(levelname)s %(message)s (%(name)s)"
    logging.basicConfig(
        level=logging.WARNING, format=layout, handlers=[_Warnings() if is_own_command() else logging.StreamHandler()]
    )


def run_work(
    work: Callable[[], Awaitable[int]],
    *,
    fail: Callable[[BaseException], None] | None = None,
    failure_code: int = 1,
) -> int:
    """Run a tool's coroutine and return its exit code; `fail` prints failures."""
    _log_to_stderr()

    async def run() -> int:
        # After SIGTERM, as after Ctrl-C, a tool still leaves its group and delivers accepted records.
        task = asyncio.current_task()
        assert task is not None
        _cancel_once_on_sigterm(task)
        return await work()

    try:
        return asyncio.run(run())
    except KeyboardInterrupt:
        return 130
    except asyncio.CancelledError:
        return 143
    except BrokenPipeError:
        # The reader of the output has gone (`| head`). Python must not complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UsageError as error:
        print(error, file=sys.stderr)
        return 1
    except FAILURES as error:
        if fail is None:
            print(reason(error), file=sys.stderr)
        else:
            fail(error)
        return failure_code


def _cancel_once_on_sigterm(task: asyncio.Task[int]) -> None:
    """Ignore a second signal: `timeout` sends two, and the tool's shutdown must not be interrupted."""
    loop = asyncio.get_running_loop()

    def handle() -> None:
        loop.add_signal_handler(signal.SIGTERM, int)
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, handle)


def read_text(path: str) -> str:
    """The text of a file. Raises OSError."""
    return Path(path).read_text(encoding="utf-8")


def read_properties(path: str) -> dict[str, str]:
    """The properties in a file. Raises OSError and ConfigError."""
    return load_properties(Path(path).read_bytes())


def parse_pairs(arguments: Iterable[str], *, accept_missing_value: bool = True) -> dict[str, str]:
    """`key=value` texts as properties. Raises ToolError for a missing key, or a missing `=` where it is required."""
    properties = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not key or (not equals and not accept_missing_value):
            raise ToolError(f"Invalid command line properties: {argument}")
        properties[key] = value
    return properties


def make_client(
    bootstrap_servers: str | None, properties: Mapping[str, str] | None = None, *, client_id: str = "admin"
) -> KafkaClient:
    """A client with the options of the command line. Raises SettingsError, ConfigError.

    `bootstrap_servers` overrides `properties`, which override `client_id`.
    """
    values = {"client.id": client_id, **(properties or {})}
    if bootstrap_servers is not None:
        values["bootstrap.servers"] = bootstrap_servers
    if any("${" in text for text in values.values()):
        values = resolve(values, os.environ, read_bytes)
    if values.get("security.protocol", "").upper().startswith("SASL"):
        values = _with_java_options(values)
    settings = ClientSettings.parse(values)
    if is_own_command() and "default.api.timeout.ms" not in values:
        settings = settings.replace(bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS)
    return KafkaClient(settings)


def _with_java_options(values: dict[str, str]) -> dict[str, str]:
    """Add the login module of section KafkaClient in the JAAS file of KAFKA_OPTS, unless `values` have one.

    Raises ConfigError.
    """
    from security.jaas import CLIENT, KERBEROS_PROPERTY, module_text, sections_of, system_properties

    options = system_properties(os.environ.get("KAFKA_OPTS", ""))
    if KERBEROS_PROPERTY in options:
        os.environ["KRB5_CONFIG"] = options[KERBEROS_PROPERTY]
    if "sasl.jaas.config" in values:
        return values
    text = module_text(sections_of(options, read_text), (CLIENT,), values.get("sasl.mechanism", "GSSAPI"))
    return values if text is None else {**values, "sasl.jaas.config": text}


def admin_client(options: Options, *, client_id: str = "admin") -> KafkaClient:
    """The client for `--bootstrap-server` and `--command-config`. Raises ClientError, OSError, ConfigError."""
    path = options.text("command-config")
    return make_client(
        options.text("bootstrap-server"), read_properties(path) if path is not None else {}, client_id=client_id
    )


class TopicFilter:
    """Topics whose whole name matches. A comma in the expression means "or"; spaces and outer quotes are ignored."""

    def __init__(self, expression: str, *, exclude_internal: bool = False) -> None:
        """Raise ToolError for an invalid regular expression."""
        self.expression = expression.strip().replace(",", "|").replace(" ", "").strip("\"'")
        self._exclude_internal = exclude_internal
        try:
            self._pattern = re.compile(self.expression)
        except re.error:
            raise ToolError(f"{self.expression} is an invalid regex.") from None

    def allows(self, topic: str, is_internal: bool) -> bool:
        """Whether the filter selects a topic."""
        return bool(self._pattern.fullmatch(topic)) and not (self._exclude_internal and is_internal)
