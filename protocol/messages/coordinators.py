"""FindCoordinator: the broker that coordinates a group or a transactional id."""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.wire.schema import Request, Response, Struct, field, int8, int16, int32, nullable_string, string


class FindCoordinatorRequest(Request, api_key=ApiKey.FIND_COORDINATOR, versions="0-6"):
    """Asks for coordinators. Key types: 0 group, 1 transactional id, 2 share group.

    - v1: key type
    - v3: flexible
    - v4: several keys at once (KIP-699)
    - v5: TRANSACTION_ABORTABLE may be returned (KIP-890)
    - v6: share groups (KIP-932)
    """

    key: string = field("0-3", default="")
    key_type: int8 = field("1+", default=0)
    coordinator_keys: list[string] = field("4+", default=[])


class FindCoordinatorResponse(Response, api_key=ApiKey.FIND_COORDINATOR, versions="0-6"):
    """The coordinators, or an error.

    - v1: throttle time and error message
    - v3: flexible
    - v4: one entry per key instead of a single one (KIP-699)
    """

    class Coordinator(Struct):
        """The coordinator of one key; node -1, host "" and port -1 with an error."""

        key: string
        node_id: int32
        host: string
        port: int32
        error_code: int16
        error_message: nullable_string

    throttle_time_ms: int32 = field("1+", default=0, ignorable=True)
    error_code: int16 = field("0-3", default=0)
    error_message: nullable_string = field("1-3", default="", ignorable=True)
    node_id: int32 = field("0-3", default=0)
    host: string = field("0-3", default="")
    port: int32 = field("0-3", default=0)
    coordinators: list[Coordinator] = field("4+", default=[])
