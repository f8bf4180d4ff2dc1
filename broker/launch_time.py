"""When this process began its own work; `broker.__main__` imports this module before anything that takes time."""

import time

LAUNCHED_S = time.monotonic()
"""Seconds on the monotonic clock that `broker.environment.system.SystemClock` reads."""
