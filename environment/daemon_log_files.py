"""A daemon's log files: Kafka's names, one file an hour, a week of them. Only a daemon loads them."""

from __future__ import annotations

import logging
import logging.handlers
import os
import re

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
"""Kafka's files by the logger that writes them; only the root logger also writes to the terminal."""

OWN_FILE_ONLY = ("state.change.logger", "kafka.request.logger")
"""Loggers whose lines would flood server.log; they are kept out of it, at Kafka's levels."""

_HOUR_S = 3600


class HourlyFileHandler(logging.handlers.TimedRotatingFileHandler):
    """A log file that is renamed after each hour, such as `server.log.2026-11-21-13`, as by log4j's
    DailyRollingFileAppender with Kafka's pattern. The newest KEPT_FILES are kept.
    """

    def __init__(self, path: str, *, delay: bool) -> None:
        super().__init__(path, when="H", backupCount=KEPT_FILES, encoding="utf-8", delay=delay)
        self.suffix = "%Y-%m-%d-%H"
        # This pattern matches the old files; the inherited one expects another suffix.
        self.extMatch = re.compile(r"\d{4}-\d{2}-\d{2}-\d{2}\Z")

    def computeRollover(self, currentTime: int) -> int:  # noqa: N802, N803  the library's names
        """The end of the current hour, whenever the broker started."""
        return currentTime - currentTime % _HOUR_S + _HOUR_S


def open_log_files(log_dir: str, formatter: logging.Formatter) -> None:
    """Attach its file under `log_dir` to each logger of FILES. Raises OSError when the directory cannot be created or
    written.
    """
    os.makedirs(log_dir, exist_ok=True)
    for name, file_name in FILES.items():
        handler = HourlyFileHandler(os.path.join(log_dir, file_name), delay=name != "")
        handler.setFormatter(formatter)
        named = logging.getLogger(name)
        named.addHandler(handler)
        if name in OWN_FILE_ONLY:
            named.propagate = False
