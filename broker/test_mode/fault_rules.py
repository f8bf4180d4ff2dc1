"""Faults that a test asks for: which requests they hit, and what happens to them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.network.registry import RequestContext
from broker.test_mode.api_description import Schema, boolean, integer, nullable, number, optional, struct, text
from broker.test_mode.touched_resources import TopicName, groups_of, partitions_of, transactional_ids_of
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import REQUEST_TYPES
from protocol.value import Value
from protocol.wire.schema import Request

ACTIONS: Final = (
    "error", "delay", "hang", "close", "throttle", "half", "twice", "double", "corrupt", "unknown_schema",
)  # fmt: skip
_API_OF: Final = {"double": ApiKey.PRODUCE, "corrupt": ApiKey.FETCH, "unknown_schema": ApiKey.FETCH}
"""The actions that only one API has."""
NAMES: Final = {request.__name__.removesuffix("Request"): api_key for api_key, request in REQUEST_TYPES.items()}
"""The APIs by Kafka's names, such as `ListOffsets`."""
API_NAMES: Final = {api_key: name for name, api_key in NAMES.items()}
SELECTORS: Final[dict[str, Schema]] = {
    "topic": nullable(text("Only requests for this topic.")),
    "partition": nullable(integer("Only requests for this partition.")),
    "group": nullable(text("Only requests that name this group.")),
    "transactional_id": nullable(text("Only requests that name this transactional id.")),
    "client_id": nullable(text("Only requests of this client.")),
    "principal": nullable(text("Only requests of this principal, such as `User:alice`.")),
    "version": nullable(integer("Only requests in this version of the API.")),
    "listener": nullable(text("Only requests to this listener.")),
}
NEW_FAULT: Final = struct(
    {
        "api": text("Kafka's name of the API, such as `Produce`."),
        "action?": text("How each request fails.", enum=ACTIONS, default="error"),
        "error?": text("Kafka's name of the error, such as `NOT_LEADER_OR_FOLLOWER`; for the action `error`."),
        "message?": nullable(text("The message of the error.", default=None)),
        "delay_ms?": integer("How long the actions `delay` and `throttle` last.", minimum=0, default=0),
        "after?": boolean("The request takes effect first; default for errors named `..._AFTER_APPEND`."),
        "times?": nullable(integer("How many requests are hit; null means all.", minimum=0, default=1)),
        "skip?": integer("How many requests pass before.", minimum=0, default=0),
        "probability?": number("How likely each request is hit.", minimum=0, maximum=1, default=1),
        "seed?": integer("Makes the choice by `probability` repeatable.", minimum=0, default=0),
        "optional?": boolean("No test fails if the fault hits nothing.", default=False),
        **optional(SELECTORS),
    },
    "NewFault",
)
FAULT: Final = struct(
    {
        "id": integer("The fault, for `DELETE /v1/faults/{id}`."),
        "api": text("Kafka's name of the API."),
        "action": text("How each request fails.", enum=ACTIONS),
        "error?": text("Kafka's name of the error."),
        "times": nullable(integer("How many requests are hit; null means all.")),
        "hits": integer("How many requests have been hit."),
        "optional": boolean("No test fails if the fault hits nothing."),
        "nearest": nullable(text("The request that matched most selectors, but not all.")),
        **optional(SELECTORS),
    },
    "Fault",
)
"""See `FaultRule.described`."""


class FaultError(ValueError):
    """A fault cannot be set; the message names the part that is wrong, and what is allowed."""


class Fault(Value, kw_only=True):
    """A fault as a test asks for it.

    `after`: the request takes effect first. The fault hits `times` requests (None: all), from the one after `skip`
    others on, each with `probability`.
    """

    api: ApiKey
    action: str
    error: ErrorCode
    message: str | None
    delay_ms: int
    after: bool
    times: int | None
    skip: int
    probability: float
    seed: int
    optional: bool
    selectors: dict[str, Any]

    @classmethod
    def of(cls, given: Mapping[str, Any], served: Callable[[ApiKey], bool]) -> Fault:
        """Read the checked fields of NEW_FAULT. Raises FaultError for names that Kafka does not have."""
        api_key = NAMES.get(given["api"])
        if api_key is None or not served(api_key):
            apis = ", ".join(sorted(name for name, key in NAMES.items() if served(key)))
            raise FaultError(f"unknown API {given['api']!r}; there are: {apis}")
        action = given["action"]
        if _API_OF.get(action, api_key) is not api_key:
            raise FaultError(f"the action {action} is one of {API_NAMES[_API_OF[action]]}, not of {given['api']}")
        error = _error(given) if action == "error" else ErrorCode.NONE
        return cls(
            api=api_key,
            error=error,
            after=given.get("after", error.name.endswith("_AFTER_APPEND")),
            selectors={name: given[name] for name in SELECTORS if given.get(name) is not None},
            **{name: given[name] for name in _TAKEN},
        )


_TAKEN: Final = ("action", "message", "delay_ms", "times", "skip", "probability", "seed", "optional")
"""The fields of a Fault that are taken as they are given."""


def _error(given: Mapping[str, Any]) -> ErrorCode:
    name = str(given.get("error"))
    error = ErrorCode.__members__.get(name)
    if error is None or error is ErrorCode.NONE:
        raise FaultError(f"unknown error {name!r}; Kafka's names are such as NOT_LEADER_OR_FOLLOWER")
    return error


class FaultRule:
    """An active fault and its hits."""

    def __init__(self, number: int, fault: Fault) -> None:
        self.number = number
        self.fault = fault
        self.hits = 0
        self.nearest: str | None = None
        """The request that matched the most selectors but not all."""
        self._open_hits = 0
        self._most_matched = -1
        self._seen = 0
        self._random = random.Random(fault.seed)  # noqa: S311  reproducible, not secret

    @property
    def is_spent(self) -> bool:
        """Whether the fault hits nothing more."""
        return self.fault.times is not None and self.hits + self._open_hits >= self.fault.times

    def hits_request(self, context: RequestContext, request: Request, topic_name: TopicName) -> bool:
        """Whether the fault hits this request of its API; counts it."""
        if self.is_spent:
            return False
        wrong = self._wrong_selectors(context, request, topic_name)
        if wrong:
            matched = len(self.fault.selectors) - len(wrong)
            if matched > self._most_matched:
                self._most_matched = matched
                found = ", ".join(f"{name} is {value!r}" for name, value in wrong.items())
                self.nearest = f"{type(request).__name__} v{context.api_version} of {context.client_id!r}: {found}"
            return False
        self._seen += 1
        if self._seen <= self.fault.skip or self._random.random() >= self.fault.probability:
            return False
        self.hits += 1
        return True

    def open_hit(self) -> None:
        """Do not count the last hit before `close_hit`: it is not known yet whether there is anything to change."""
        self.hits -= 1
        self._open_hits += 1

    def close_hit(self, *, counts: bool) -> None:
        """End a hit that is open."""
        self._open_hits -= 1
        self.hits += counts

    def touches(self, topic: str | None, partition: int | None) -> bool:
        """Whether the fault affects this partition."""
        selectors = self.fault.selectors
        return selectors.get("topic", topic) == topic and (
            partition is None or selectors.get("partition", partition) == partition
        )

    def _wrong_selectors(self, context: RequestContext, request: Request, topic_name: TopicName) -> dict[str, object]:
        """The selectors that the request does not match, and the values it has instead."""
        selectors = self.fault.selectors
        plain = {
            "client_id": context.client_id,
            "principal": str(context.principal),
            "version": context.api_version,
            "listener": context.listener_name,
        }
        wrong: dict[str, object] = {name: value for name, value in plain.items() if selectors.get(name, value) != value}
        if "group" in selectors and selectors["group"] not in (groups := groups_of(request)):
            wrong["group"] = groups
        if "transactional_id" in selectors and selectors["transactional_id"] not in (
            ids := transactional_ids_of(request)
        ):
            wrong["transactional_id"] = ids
        if "topic" in selectors or "partition" in selectors:
            named = partitions_of(request, topic_name)
            if not any(self.touches(*each) for each in named):
                wrong["topic"] = sorted({str(topic) for topic, _ in named})
                if "partition" in selectors:
                    wrong["partition"] = sorted({each for _, each in named if each is not None})
        return wrong

    def described(self) -> dict[str, object]:
        """The fault as JSON."""
        fault = self.fault
        details = fault.selectors | ({"error": fault.error.name} if fault.error else {})
        return {
            "id": self.number, "api": API_NAMES[fault.api], "action": fault.action, **details, "times": fault.times,
            "hits": self.hits, "optional": fault.optional, "nearest": self.nearest,
        }  # fmt: skip
