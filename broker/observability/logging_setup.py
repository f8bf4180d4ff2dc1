"""The destinations of log lines: the terminal, and for a daemon also Kafka's files (`log_files`)."""

from __future__ import annotations

import logging
import sys

FORMAT = "[%(asctime)s,%(msecs)03d] %(levelname)s %(message)s (%(name)s)"
"""The pattern of Kafka's log4j.properties, with log4j's level names, so that people's log parsers work."""

DATE_FORMAT = "%Y-%m-%d %H:%M:%S"

CONFIGURED_LOGGERS = (
    "kafka",
    "org.apache.kafka",
    "kafka.controller",
    "kafka.log.LogCleaner",
    "kafka.authorizer.logger",
    "state.change.logger",
    "kafka.request.logger",
)
"""Loggers of Kafka's log4j.properties. They exist from the start, so that their levels can be changed."""


def configure_logging(log_dir: str | None, *, terminal: bool = True) -> None:
    """Log to the terminal (standard output, as Kafka's console appender), and into files under `log_dir` if given.
    Without `terminal` only into files: they are bounded, and a file that standard output goes to is not.

    Raises OSError when the directory cannot be made or written.
    """
    logging.addLevelName(logging.WARNING, "WARN")
    logging.addLevelName(logging.CRITICAL, "FATAL")
    formatter = logging.Formatter(FORMAT, DATE_FORMAT)
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    if terminal:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(formatter)
        root.addHandler(handler)
    for name in CONFIGURED_LOGGERS:
        logging.getLogger(name)
    logging.getLogger("kafka.request.logger").setLevel(logging.WARNING)
    if log_dir is not None:
        from broker.observability.daemon_log_files import open_log_files

        open_log_files(log_dir, formatter)
