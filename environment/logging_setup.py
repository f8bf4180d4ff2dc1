"""The destinations of log lines: the terminal, and for a daemon also Kafka's files, rotated hourly and kept for a week
(`log_files`). Also the levels of loggers, which can change while the broker runs (KIP-412), in log4j's terms.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping

FORMAT = "[%(asctime)s,%(msecs)03d] %(levelname)s %(message)s (%(name)s)"
"""The pattern of Kafka's log4j.properties, with log4j's level names, so that existing log parsers work."""

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
    Without `terminal`, log only into files: their size is bounded, but that of a file behind standard output is not.

    Raises OSError when the directory cannot be created or written.
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
        from environment.daemon_log_files import open_log_files

        open_log_files(log_dir, formatter)


ROOT = "root"
"""log4j's name for the root logger."""

LEVELS: Mapping[str, int] = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": 5,
    "WARN": logging.WARNING,
}
"""Kafka's levels (class `LogLevelConfig`), in the order of its error messages."""


class LoggerLevels:
    """The levels of this process's loggers. Python keeps the state; only this class changes it."""

    def names(self) -> Iterator[str]:
        """The existing loggers, the root first."""
        yield ROOT
        for name, logger in sorted(logging.root.manager.loggerDict.items()):
            if isinstance(logger, logging.Logger):
                yield name

    def exists(self, name: str) -> bool:
        """Whether a logger of that name exists."""
        return name == ROOT or isinstance(logging.root.manager.loggerDict.get(name), logging.Logger)

    def level(self, name: str) -> str:
        """The effective level: the logger's own, or that of its nearest ancestor with one."""
        effective = self._logger(name).getEffectiveLevel()
        at_most = [word for word, number in LEVELS.items() if number <= effective]
        return max(at_most, key=LEVELS.__getitem__, default="TRACE")

    def set_level(self, name: str, level: str) -> None:
        """Set the logger's own level, one of LEVELS."""
        self._logger(name).setLevel(LEVELS[level])

    def unset_level(self, name: str) -> None:
        """Remove the logger's own level, so that its parent's applies."""
        self._logger(name).setLevel(logging.NOTSET)

    @staticmethod
    def _logger(name: str) -> logging.Logger:
        return logging.root if name == ROOT else logging.getLogger(name)
