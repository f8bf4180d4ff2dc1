"""InitProducerId: an identity for an idempotent or transactional producer (KIP-98, KIP-360)."""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.wire.schema import Request, Response, field, int16, int32, int64, nullable_string


class InitProducerIdRequest(Request, api_key=ApiKey.INIT_PRODUCER_ID, versions="0-5", flexible="2+"):
    """Asks for a producer id and epoch; the transactional id is null for a producer that is idempotent only.

    - v2: flexible
    - v3: the id and epoch at hand, to go on with a higher epoch (KIP-360)
    - v4: PRODUCER_FENCED may be answered (KIP-588)
    - v5: TRANSACTION_ABORTABLE may be answered (KIP-890)
    """

    transactional_id: nullable_string
    transaction_timeout_ms: int32
    producer_id: int64 = field("3+", default=-1)
    producer_epoch: int16 = field("3+", default=-1)


class InitProducerIdResponse(Response, api_key=ApiKey.INIT_PRODUCER_ID, versions="0-5", flexible="2+"):
    """The identity to produce with; id -1 with an error.

    - v2: flexible
    """

    throttle_time_ms: int32
    error_code: int16
    producer_id: int64 = -1
    producer_epoch: int16
