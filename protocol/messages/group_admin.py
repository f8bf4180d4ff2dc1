"""DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.wire.schema import (
    Request,
    Response,
    Struct,
    boolean,
    bytes_,
    field,
    int16,
    int32,
    nullable_string,
    string,
)


class DescribeGroupsRequest(Request, api_key=ApiKey.DESCRIBE_GROUPS, versions="0-5"):
    """Groups to describe.

    - v3: whether to include authorized operations
    - v5: flexible
    """

    groups: list[string]
    include_authorized_operations: boolean = field("3+", default=False)


class DescribeGroupsResponse(Response, api_key=ApiKey.DESCRIBE_GROUPS, versions="0-5"):
    """The groups. One that does not exist is described as Dead, without an error.

    - v1: throttle time
    - v3: authorized operations; -2^31 if not requested
    - v4: instance ids of static members
    - v5: flexible
    """

    class DescribedGroupMember(Struct):
        """A member; its metadata and assignment are filled in while the group is Stable."""

        member_id: string
        group_instance_id: nullable_string = field("4+", default=None, ignorable=True)
        client_id: string
        client_host: string
        member_metadata: bytes_
        member_assignment: bytes_

    class DescribedGroup(Struct):
        """One group; `protocol_data` names its assignor while it is Stable."""

        error_code: int16
        group_id: string
        group_state: string
        protocol_type: string
        protocol_data: string
        members: list[DescribeGroupsResponse.DescribedGroupMember]
        authorized_operations: int32 = field("3+", default=-0x80000000)

    throttle_time_ms: int32 = field("1+", default=0, ignorable=True)
    groups: list[DescribedGroup]


class ListGroupsRequest(Request, api_key=ApiKey.LIST_GROUPS, versions="0-5"):
    """Asks for the groups that this broker coordinates; empty filters match everything.

    - v3: flexible
    - v4: filter by state (KIP-518)
    - v5: filter by type (KIP-848)
    """

    states_filter: list[string] = field("4+", default=[])
    types_filter: list[string] = field("5+", default=[])


class ListGroupsResponse(Response, api_key=ApiKey.LIST_GROUPS, versions="0-5"):
    """The groups that this broker coordinates.

    - v1: throttle time
    - v3: flexible
    - v4: state (KIP-518)
    - v5: type (KIP-848)
    """

    class ListedGroup(Struct):
        """One group."""

        group_id: string
        protocol_type: string
        group_state: string = field("4+", default="", ignorable=True)
        group_type: string = field("5+", default="", ignorable=True)

    throttle_time_ms: int32 = field("1+", default=0, ignorable=True)
    error_code: int16
    groups: list[ListedGroup]


class DeleteGroupsRequest(Request, api_key=ApiKey.DELETE_GROUPS, versions="0-2"):
    """Empty groups to delete with their offsets (KIP-229).

    - v2: flexible
    """

    groups_names: list[string]


class DeleteGroupsResponse(Response, api_key=ApiKey.DELETE_GROUPS, versions="0-2"):
    """The outcome per group.

    - v2: flexible
    """

    class DeletableGroupResult(Struct):
        """The outcome for one group."""

        group_id: string
        error_code: int16

    throttle_time_ms: int32
    results: list[DeletableGroupResult]
