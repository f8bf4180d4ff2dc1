"""Shared parts of the tools that measure or verify: the table of --print-metrics (Kafka class `ToolsUtils`), a limit of
records per second (Kafka class `ThroughputThrottler`), and events as lines of JSON.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from client.errors import ClientTimeoutError
from protocol.errors import ApiError, ErrorCode
from tools.support.common import now_ms, reason
from tools.support.error_texts import exception_of


def print_metrics(metrics: Mapping[str, float]) -> None:
    """Print metrics as `group:name:{tag=value}`, sorted, in two columns."""
    width = max(map(len, metrics), default=0)
    print(f"\n{'Metric Name':{width}}   Value")
    for name, value in sorted(metrics.items()):
        print(f"{name:{width}} : {value:.3f}")


_MIN_SLEEP_S = 0.002
"""Shorter sleeps are inaccurate, so they are added up and slept together."""


class Throttle:
    """At most `per_second` records a second since its creation; a negative value is unlimited, 0 blocks all records."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._loop = asyncio.get_running_loop()
        self._start_s = self._loop.time()

    async def wait(self, sent: int) -> None:
        """Wait until the record after `sent` ones may be sent."""
        if self._per_second < 0:
            return
        if self._per_second == 0:
            await asyncio.Event().wait()
        ahead_s = sent / self._per_second - (self._loop.time() - self._start_s)
        if ahead_s >= _MIN_SLEEP_S:
            await asyncio.sleep(ahead_s)


def print_event(name: str, **members: Any) -> None:
    """Print one line of JSON: the time, the name, the members."""
    event = {"timestamp": now_ms(), "name": name, **members}
    print(json.dumps(event, separators=(",", ":"), ensure_ascii=False), flush=True)


def exception_class(error: BaseException) -> str:
    """The Java class that corresponds to an error."""
    if isinstance(error, ApiError):
        return exception_of(error.error_code)
    if isinstance(error, ClientTimeoutError):
        return exception_of(ErrorCode.REQUEST_TIMED_OUT)
    return "org.apache.kafka.common.KafkaException"


def describe_error(error: BaseException) -> dict[str, str]:
    """The members of an event that describe an error."""
    return {"exception": f"class {exception_class(error)}", "message": reason(error)}
