"""The levels of the broker's loggers, changed while it runs (KIP-412), in log4j's words."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

ROOT = "root"
"""log4j's name for the logger above all others."""

LEVELS: Mapping[str, int] = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": 5,
    "WARN": logging.WARNING,
}
"""Kafka's levels (class `LogLevelConfig`), in the order in which its errors name them."""


class LoggerLevels:
    """Every logger of this process. Python keeps the state; this is the one who changes it."""

    def names(self) -> Iterator[str]:
        """The loggers there are, the root first."""
        yield ROOT
        for name, logger in sorted(logging.root.manager.loggerDict.items()):
            if isinstance(logger, logging.Logger):
                yield name

    def exists(self, name: str) -> bool:
        """Whether there is a logger of that name."""
        return name == ROOT or isinstance(logging.root.manager.loggerDict.get(name), logging.Logger)

    def level(self, name: str) -> str:
        """The level in force: the logger's own, or that of the nearest above it which has one."""
        effective = self._logger(name).getEffectiveLevel()
        at_most = [word for word, number in LEVELS.items() if number <= effective]
        return max(at_most, key=LEVELS.__getitem__, default="TRACE")

    def set_level(self, name: str, level: str) -> None:
        """Give the logger a level of its own, one of LEVELS."""
        self._logger(name).setLevel(LEVELS[level])

    def unset_level(self, name: str) -> None:
        """Remove the logger's own level, so that its parent's applies."""
        self._logger(name).setLevel(logging.NOTSET)

    @staticmethod
    def _logger(name: str) -> logging.Logger:
        return logging.root if name == ROOT else logging.getLogger(name)
