"""Where log lines go: the terminal, and for a daemon also Kafka's files, rotated every hour."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys

FORMAT = "[%(asctime)s,%(msecs)03d] %(levelname)s %(message)s (%(name)s)"
"""The pattern of Kafka's log4j.properties, with log4j's level names, so that people's log parsers work."""

DATE_FORMAT = "%Y-%m-%d %H:%M:%S"
KEPT_FILES = 168
"""Hours of rotated files kept: a week. (Kafka keeps all; a full disk is not a feature.)"""

FILES = {
    "": "server.log",
    "state.change.logger": "state-change.log",
    "kafka.request.logger": "kafka-request.log",
    "kafka.controller": "controller.log",
    "kafka.log.LogCleaner": "log-cleaner.log",
    "kafka.authorizer.logger": "kafka-authorizer.log",
}
"""Kafka's files by the logger that writes them; only the root's also goes to the terminal."""

OWN_FILE_ONLY = ("state.change.logger", "kafka.request.logger")
"""Loggers whose lines would drown the others: kept out of server.log, at Kafka's levels."""


def configure_logging(log_dir: str | None) -> None:
    """Log to the terminal (standard output, as Kafka's console appender), and into files under `log_dir` if given.

    Raises OSError when the directory cannot be made or written.
    """
    logging.addLevelName(logging.WARNING, "WARN")
    logging.addLevelName(logging.CRITICAL, "FATAL")
    formatter = logging.Formatter(FORMAT, DATE_FORMAT)
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    terminal = logging.StreamHandler(sys.stdout)
    terminal.setFormatter(formatter)
    root.addHandler(terminal)
    logging.getLogger("kafka.request.logger").setLevel(logging.WARNING)
    if log_dir is None:
        return
    os.makedirs(log_dir, exist_ok=True)
    for name, file_name in FILES.items():
        handler = logging.handlers.TimedRotatingFileHandler(
            os.path.join(log_dir, file_name), when="H", backupCount=KEPT_FILES, encoding="utf-8", delay=name != ""
        )
        handler.suffix = "%Y-%m-%d-%H"
        handler.setFormatter(formatter)
        named = logging.getLogger(name)
        named.addHandler(handler)
        if name in OWN_FILE_ONLY:
            named.propagate = False
