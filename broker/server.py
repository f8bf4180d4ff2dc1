"""KafkaServer: builds every owner of state, starts them in order, stops them in reverse.

Start: bind addresses -> load logs -> open coordination -> register and lead -> serve. Nothing is written before the
addresses are known to be free and the log directories known to be ours.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("kafka.server.KafkaServer")


class StartupError(Exception):
    """The broker cannot start; the message is the one line that says why."""
