"""Events as lines of JSON, as the verifiable producer and consumer print them."""

from __future__ import annotations

import json
from typing import Any

from client.errors import ClientTimeoutError
from protocol.errors import ApiError, ErrorCode
from tools.support.common import now_ms, reason
from tools.support.error_texts import exception_of


def print_event(name: str, **members: Any) -> None:
    """One line: the time, the name, the rest."""
    event = {"timestamp": now_ms(), "name": name, **members}
    print(json.dumps(event, separators=(",", ":"), ensure_ascii=False), flush=True)


def exception_class(error: BaseException) -> str:
    """The Java class that stands for an error."""
    if isinstance(error, ApiError):
        return exception_of(error.error_code)
    if isinstance(error, ClientTimeoutError):
        return exception_of(ErrorCode.REQUEST_TIMED_OUT)
    return "org.apache.kafka.common.KafkaException"


def describe_error(error: BaseException) -> dict[str, str]:
    """The members of an event that tell about an error."""
    return {"exception": f"class {exception_class(error)}", "message": reason(error)}
