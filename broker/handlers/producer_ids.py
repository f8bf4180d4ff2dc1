"""InitProducerId: identity for idempotent producers (KIP-98)."""

from __future__ import annotations

import logging
from typing import Final

from broker.handlers.coordinators import log_refused_producer
from broker.metadata.producer_ids import ProducerIds
from broker.network.registry import RequestContext, api
from cluster.zookeeper.coordination import CoordinationError
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages import InitProducerIdRequest, InitProducerIdResponse

logger = logging.getLogger("kafka.coordinator.transaction.ZkProducerIdManager")

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1


class ProducerIdHandlers:
    """Gives a fresh id to every producer without a transactional id. One with it fails as in `CoordinatorHandlers`."""

    def __init__(self, producer_ids: ProducerIds) -> None:
        self._producer_ids = producer_ids

    @api(ApiKey.INIT_PRODUCER_ID, versions=(0, 5))
    async def init_producer_id(
        self,
        context: RequestContext,
        request: InitProducerIdRequest,
    ) -> InitProducerIdResponse:
        """A producer id with epoch 0."""
        if (request.producer_id == NO_PRODUCER_ID) is not (request.producer_epoch == NO_PRODUCER_EPOCH):
            return _refused(ErrorCode.INVALID_REQUEST)
        if request.transactional_id == "":
            return _refused(ErrorCode.INVALID_REQUEST)
        if request.transactional_id is not None:
            log_refused_producer(context, request.transactional_id)
            return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        try:
            producer_id = await self._producer_ids.next_id()
        except CoordinationError as error:
            logger.error("No block of producer ids could be allocated: %s", error)
            return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        except Exception as error:  # as Kafka, whose ZkProducerIdManager gives any failure to the client
            logger.exception("No block of producer ids could be allocated")
            error_code = error.error_code if isinstance(error, ApiError) else ErrorCode.UNKNOWN_SERVER_ERROR
            # The outcome of a change of the tree is not known; clients know no such code here.
            is_unknown = error_code is ErrorCode.NOT_CONTROLLER
            return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_unknown else error_code)
        return InitProducerIdResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0
        )


def _refused(error_code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time_ms=0, error_code=error_code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )
