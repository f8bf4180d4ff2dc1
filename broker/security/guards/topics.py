"""CreateTopics, DeleteTopics and CreatePartitions: rights on topics, or to create them in the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from broker.network.registry import RequestContext
from broker.security.access import Client
from broker.security.replies import Outcome, Proceed, then
from cluster.metadata_image import MetadataImage
from protocol.acl_types import AclOperation, ResourceType
from protocol.errors import ErrorCode
from protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from protocol.uuids import ZERO_UUID, Uuid

DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
UNKNOWN: Final = -1
FIRST_DELETE_WITH_STATES: Final = 6

_Deleted = DeleteTopicsResponse.DeletableTopicResult


class TopicGuards:
    """Guards of requests to the controller. If this broker is not the controller, the handlers reject the requests."""

    def __init__(
        self, image: Callable[[], MetadataImage], is_controller: Callable[[], bool], may_delete: Callable[[], bool]
    ) -> None:
        """`image` returns the metadata, to look up topic ids; `may_delete` whether topics may be deleted at all."""
        self._image = image
        self._is_controller = is_controller
        self._may_delete = may_delete

    def create(
        self, client: Client, context: RequestContext, request: CreateTopicsRequest, proceed: Proceed
    ) -> Outcome:
        """CREATE on the cluster or on each topic. Without DESCRIBE_CONFIGS, the response omits the new topic's
        properties.
        """
        del context
        if not self._is_controller():
            return proceed(request)
        counts = Counter(topic.name for topic in request.topics)
        denied = frozenset[str]()
        if not client.may_in_cluster(AclOperation.CREATE, logs_denial=False):
            # Repeated names are refused anyway, but this check logs them.
            uncreatable = client.denied(AclOperation.CREATE, ResourceType.TOPIC, counts)
            denied = frozenset(name for name in uncreatable if counts[name] == 1)
        hidden = client.denied(
            AclOperation.DESCRIBE_CONFIGS,
            ResourceType.TOPIC,
            counts,
            logs_denial=False,
        )
        if not denied and not hidden:
            return proceed(request)
        refused = [
            CreateTopicsResponse.CreatableTopicResult(
                name=name, error_code=DENIED, error_message="Authorization failed."
            )
            for name in counts
            if name in denied
        ]
        for each in refused:
            each.topic_config_error_code = DENIED if each.name in hidden else ErrorCode.NONE
        request.topics = [topic for topic in request.topics if topic.name not in denied]
        order = {name: number for number, name in enumerate(counts)}

        def tell(response: CreateTopicsResponse) -> CreateTopicsResponse:
            for each in response.topics:
                if each.name in hidden:
                    each.topic_config_error_code = DENIED
                    each.num_partitions = each.replication_factor = UNKNOWN
                    each.configs = []
            response.topics = sorted([*response.topics, *refused], key=lambda each: order[each.name])
            return response

        return then(proceed(request), tell)

    def delete(
        self, client: Client, context: RequestContext, request: DeleteTopicsRequest, proceed: Proceed
    ) -> Outcome:
        """DELETE on each topic. A topic requested by id stays nameless if the client may not describe it."""
        if not self._is_controller() or not self._may_delete():
            return proceed(request)
        states = context.api_version >= FIRST_DELETE_WITH_STATES
        asked: list[tuple[str | None, Uuid]] = (
            [(topic.name, topic.topic_id) for topic in request.topics]
            if states
            else [(name, ZERO_UUID) for name in request.topic_names]
        )
        known = self._image().topic_names
        names = [known.get(topic_id) if name is None else name for name, topic_id in asked]
        named = [name for name in dict.fromkeys(names) if name is not None]
        hidden = client.denied(AclOperation.DESCRIBE, ResourceType.TOPIC, named)
        denied = client.denied(AclOperation.DELETE, ResourceType.TOPIC, named)
        refused: dict[int, _Deleted] = {}
        for at, (name, (asked_name, topic_id)) in enumerate(zip(names, asked, strict=True)):
            by_both = asked_name is not None and topic_id != ZERO_UUID
            if name in denied and not by_both:
                told = None if asked_name is None and name in hidden else name
                refused[at] = _Deleted(name=told, topic_id=topic_id, error_code=DENIED)
        if not refused:
            return proceed(request)
        if states:
            request.topics = [topic for at, topic in enumerate(request.topics) if at not in refused]
        else:
            request.topic_names = [name for at, name in enumerate(request.topic_names) if at not in refused]

        def merge(response: DeleteTopicsResponse) -> DeleteTopicsResponse:
            results = iter(response.responses)
            response.responses = [refused[at] if at in refused else next(results) for at in range(len(asked))]
            return response

        return then(proceed(request), merge)

    def grow(
        self, client: Client, context: RequestContext, request: CreatePartitionsRequest, proceed: Proceed
    ) -> Outcome:
        """ALTER on each topic."""
        del context
        if not self._is_controller():
            return proceed(request)
        counts = Counter(topic.name for topic in request.topics)
        once = [name for name, count in counts.items() if count == 1]
        denied = client.denied(AclOperation.ALTER, ResourceType.TOPIC, once)
        if not denied:
            return proceed(request)
        refused = [
            CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=name, error_code=DENIED, error_message="The topic authorization is failed."
            )
            for name in once
            if name in denied
        ]
        request.topics = [topic for topic in request.topics if topic.name not in denied]

        def add(response: CreatePartitionsResponse) -> CreatePartitionsResponse:
            response.results = [*response.results, *refused]
            return response

        return then(proceed(request), add)
