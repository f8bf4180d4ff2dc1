"""The broker's command line, signals and exit codes (Kafka class `kafka.Kafka`)."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable

from broker.broker_environment import Environment, system_environment
from broker.command_line import (
    BrokerArguments,
    CommandLineError,
    announcement,
    given_properties,
    help_text,
    parse_arguments,
    properties_file,
    read_configuration,
    set_logger_levels,
    start_failure,
)
from broker.garbage import GarbageCollector, HeapTrimmer
from broker.server import KafkaServer, StartupError
from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from config.properties import properties_text
from environment.logging_setup import configure_logging
from environment.process_signals import end_within, handle_signals, open_standard_streams
from environment.system import ProcessMemory, raise_open_file_limit, run_loop, with_open_file_limit
from storage.directory.meta_properties import LogDirError

logger = logging.getLogger("kafka.Kafka")

FILES_ONLY = "files"
"""The value of ODRADEK_DAEMON for a broker of `odradek cluster`, whose output is not rotated."""
CLEAN_UP_S = 30.0
"""Seconds to end the event loop, and to delete the data of a development broker, once a broker has stopped."""
LINGER_S = 1.0
"""Seconds that threads get to end after that."""
START_GRACE_S = 2.0
"""Seconds that startup may continue after a stop signal, so that it can stop cleanly."""


def main(argv: list[str], *, launched_s: float | None = None) -> int:
    """Run a broker until a signal stops it. Returns exit code 0 after a clean shutdown, 1 when it could not start.

    `launched_s` is the monotonic time of the process start; the "started" line gives the time since.
    """
    open_standard_streams()
    if argv and argv[0] in {"--help", "-h"}:
        print(help_text())
        return 0
    try:
        arguments = parse_arguments(argv)
    except CommandLineError as error:
        print(error, file=sys.stderr)
        return 1
    daemon = os.environ.get("ODRADEK_DAEMON")
    log_directory = os.environ.get("LOG_DIR", "logs") if daemon else None
    try:
        configure_logging(log_directory, terminal=daemon != FILES_ONLY)
    except OSError as error:
        print(f"cannot write logs to {log_directory}: {error.strerror or error}; set LOG_DIR", file=sys.stderr)
        return 1
    with properties_file(arguments) as path:
        code = run_broker(arguments, path, launched_s)
    end_within(LINGER_S, code)
    return code


def run_broker(arguments: BrokerArguments, path: str, launched_s: float | None) -> int:
    """Load the configuration and serve. Returns the exit code."""
    try:
        if arguments.prints:
            print(properties_text(given_properties(arguments, path, os.environ)), end="")
            return 0
        set_logger_levels(arguments, os.environ)
        config = read_configuration(arguments, path, os.environ)
    except (ConfigError, OSError) as error:
        by_variables = arguments.defaults is not None
        # A daemon's message belongs in server.log.
        logger.critical("The broker cannot start: %s", start_failure(path, error, by_variables=by_variables))
        return 1
    if config.single_node is not None:
        logger.info("%s", config.single_node)
    for name in config.unknown():
        logger.warning("Unknown configuration '%s' is ignored", name)
    for name in config.without_effect():
        logger.warning("Configuration '%s' is known to Kafka but has no effect here", name)
    for name, remark in config.remarks().items():
        logger.warning("Configuration '%s': %s", name, remark)
    if "JMX_PORT" in os.environ:
        metrics = (
            f"http://{config.metrics_listener}/metrics" if config.metrics_listener else "metrics.listener (not set)"
        )
        logger.info("JMX_PORT has no effect without a JVM; metrics are served in Prometheus's format at %s", metrics)
    raise_open_file_limit()
    cluster_id = os.environ.get("CLUSTER_ID") if arguments.defaults is not None else None

    async def on_ready(_server: KafkaServer) -> None:
        if arguments.is_development:
            print(announcement(config), flush=True)

    return run_loop(lambda: serve(config, launched_s, on_ready, cluster_id))


def abort_start() -> None:
    """End the process at once: its threads may spend long on log recovery, and none of their work must finish."""
    logger.error("Stopped before the start was complete; the next start recovers the logs")
    logging.shutdown()
    os._exit(1)


async def serve(
    config: BrokerConfig,
    launched_s: float | None,
    on_ready: Callable[[KafkaServer], Awaitable[None]],
    cluster_id: str | None = None,
    environment: Environment | None = None,
) -> int:
    """Start, await `on_ready`, wait for a stop signal, shut down cleanly. A standalone broker creates the cluster
    `cluster_id` (as Apache's image does with CLUSTER_ID), or one with a new id if that is None. The environment is this
    machine unless a test gives another one.
    """
    if cluster_id and not config.zookeeper_connect:
        from broker.format_storage import format_directories

        try:
            await format_directories(system_environment(config), config, cluster_id, ignore_formatted=True)
        except LogDirError as error:
            logger.critical("The broker cannot start with CLUSTER_ID=%s: %s", cluster_id, error)
            return 1
    environment = environment or system_environment(config)
    server = KafkaServer(config, environment=environment, launched_s=launched_s)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    aborting: list[asyncio.TimerHandle] = []

    def ask_to_stop() -> None:
        if not stop.is_set() and not started:
            aborting.append(loop.call_later(START_GRACE_S, abort_start))
        stop.set()

    started = False
    handle_signals(ask_to_stop)
    try:
        await server.start()
    except StartupError as error:
        logger.critical("The broker cannot start: %s", with_open_file_limit(error))
        await server.abandon()
        end_within(CLEAN_UP_S, 1)
        return 1
    finally:
        started = True
        for timer in aborting:
            timer.cancel()
    await on_ready(server)
    GarbageCollector(environment.clock).start()
    memory = ProcessMemory.current()
    trimmer = None if memory is None else HeapTrimmer(memory, environment.executor)
    if trimmer is not None:
        trimmer.start()
    failed = asyncio.ensure_future(server.failed.wait())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((failed, stopping), return_when=asyncio.FIRST_COMPLETED)
    for waiter in (failed, stopping):
        waiter.cancel()
    if trimmer is not None:
        trimmer.stop()
    await server.shutdown()
    code = 1 if server.failed.is_set() else 0
    end_within(CLEAN_UP_S, code)
    return code
