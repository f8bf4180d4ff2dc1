"""Classic groups: membership and administration (Kafka's KafkaApis with the GroupCoordinatorAdapter)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Final

from broker.group_coordinator_service import GroupCoordinatorService, Reply
from broker.registry import RequestContext, api
from cluster.coordinator.group import join_error, sync_error
from cluster.coordinator.membership import JoiningClient
from cluster.coordinator.shard import described
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

FIRST_JOIN_WITH_REQUIRED_MEMBER_ID: Final = 4
FIRST_JOIN_WITH_SKIPPED_ASSIGNMENT: Final = 9
FIRST_JOIN_WITH_NULL_PROTOCOL: Final = 7
FIRST_SYNC_WITH_PROTOCOL: Final = 5
FIRST_LEAVE_OF_MANY: Final = 3


class GroupHandlers:
    """Answers for the groups that this broker coordinates."""

    def __init__(self, service: GroupCoordinatorService) -> None:
        self._service = service

    # -- membership ----------------------------------------------------------------------------------------------------

    @api(ApiKey.JOIN_GROUP, versions=(0, 9))
    def join_group(
        self, context: RequestContext, request: JoinGroupRequest
    ) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
        """Answered when the next generation begins."""
        version = context.api_version
        client = JoiningClient(
            context.client_id or "",
            _client_host(context.client_address),
            requires_known_member_id=version >= FIRST_JOIN_WITH_REQUIRED_MEMBER_ID,
            skips_assignment=version >= FIRST_JOIN_WITH_SKIPPED_ASSIGNMENT,
        )
        reply: Reply[JoinGroupResponse] = Reply()

        def answer(response: JoinGroupResponse) -> None:
            if response.protocol_name is None and version < FIRST_JOIN_WITH_NULL_PROTOCOL:
                response.protocol_name = ""
            reply.set(response)

        try:
            driver = self._service.driver_of(request.group_id)
            driver.run(partial(driver.shard.membership.join, request=request, client=client, answer=answer))
        except ApiError as error:
            answer(join_error(request.member_id, error.error_code))
        return reply.get()

    @api(ApiKey.SYNC_GROUP, versions=(0, 5))
    def sync_group(
        self, context: RequestContext, request: SyncGroupRequest
    ) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
        """Answered when the leader's assignment is committed."""
        names_missing = request.protocol_type is None or request.protocol_name is None
        if context.api_version >= FIRST_SYNC_WITH_PROTOCOL and names_missing:
            return sync_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        reply: Reply[SyncGroupResponse] = Reply()
        try:
            driver = self._service.driver_of(request.group_id)
            driver.run(partial(driver.shard.membership.sync, request=request, answer=reply.set))
        except ApiError as error:
            # Clients do not expect the load here; a rebalance makes them join again at this coordinator.
            loads = error.error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return sync_error(ErrorCode.REBALANCE_IN_PROGRESS if loads else error.error_code)
        return reply.get()

    @api(ApiKey.HEARTBEAT, versions=(0, 4))
    def heartbeat(
        self,
        context: RequestContext,  # noqa: ARG002
        request: HeartbeatRequest,
    ) -> HeartbeatResponse:
        """A member lives."""
        try:
            driver = self._service.driver_of(request.group_id)
            error_code = driver.run(partial(driver.shard.membership.heartbeat, request=request))
        except ApiError as error:
            # While the group is loaded nobody can be judged, so nobody is.
            loads = error.error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            error_code = ErrorCode.NONE if loads else error.error_code
        return HeartbeatResponse(error_code=error_code)

    @api(ApiKey.LEAVE_GROUP, versions=(0, 5))
    def leave_group(self, context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Members go; before v3 it is one, whose error is the response's."""
        leaves_one = context.api_version < FIRST_LEAVE_OF_MANY
        if leaves_one:
            request.members = [LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
        try:
            driver = self._service.driver_of(request.group_id)
            response = driver.run(partial(driver.shard.membership.leave, request=request))
        except ApiError as error:
            return LeaveGroupResponse(error_code=error.error_code)
        if leaves_one:
            error_code = response.error_code or response.members[0].error_code
            return LeaveGroupResponse(error_code=error_code)
        return response

    # -- administration ------------------------------------------------------------------------------------------------

    @api(ApiKey.DESCRIBE_GROUPS, versions=(0, 5))
    def describe_groups(
        self,
        context: RequestContext,  # noqa: ARG002
        request: DescribeGroupsRequest,
    ) -> DescribeGroupsResponse:
        """Groups with their members."""
        return DescribeGroupsResponse(groups=[self._describe(request, group_id) for group_id in request.groups])

    def _describe(self, request: DescribeGroupsRequest, group_id: str) -> DescribeGroupsResponse.DescribedGroup:
        try:
            group = self._service.driver_of(group_id, may_be_empty=True).shard.describe(group_id)
        except ApiError as error:
            return described(group_id, error.error_code)
        if request.include_authorized_operations:
            group.authorized_operations = ALL_GROUP_OPERATIONS
        return group

    @api(ApiKey.LIST_GROUPS, versions=(0, 5))
    def list_groups(
        self,
        context: RequestContext,  # noqa: ARG002
        request: ListGroupsRequest,
    ) -> ListGroupsResponse:
        """The groups coordinated here."""
        states = {state.lower() for state in request.states_filter}
        types = {group_type.lower() for group_type in request.types_filter}
        loads = self._service.is_loading
        return ListGroupsResponse(
            error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loads else ErrorCode.NONE,
            groups=[group for driver in self._service.drivers() for group in driver.shard.list_groups(states, types)],
        )

    @api(ApiKey.DELETE_GROUPS, versions=(0, 2))
    async def delete_groups(
        self,
        context: RequestContext,  # noqa: ARG002
        request: DeleteGroupsRequest,
    ) -> DeleteGroupsResponse:
        """Delete groups without members."""
        group_ids = list(dict.fromkeys(request.groups_names))
        error_codes = await asyncio.gather(*map(self._delete, group_ids))
        return DeleteGroupsResponse(
            throttle_time_ms=0,
            results=[
                DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=error_code)
                for group_id, error_code in zip(group_ids, error_codes, strict=True)
            ],
        )

    async def _delete(self, group_id: str) -> ErrorCode:
        reply: Reply[ErrorCode] = Reply()
        try:
            driver = self._service.driver_of(group_id, may_be_empty=True)
        except ApiError as error:
            return error.error_code
        driver.run(partial(driver.shard.offsets.delete_group, group_id=group_id, answer=reply.set))
        outcome = reply.get()
        return outcome if isinstance(outcome, ErrorCode) else await outcome


def _client_host(address: str) -> str:
    """A member's address as Java, and so Kafka's tools, show it: behind a slash, an IPv6 one in full."""
    if ":" not in address:
        return f"/{address}"
    from ipaddress import IPv6Address

    groups = IPv6Address(address.partition("%")[0]).exploded.split(":")
    return "/" + ":".join(f"{int(group, 16):x}" for group in groups)


ALL_GROUP_OPERATIONS: Final = 1 << 3 | 1 << 6 | 1 << 8
"""READ, DELETE and DESCRIBE as bits of Kafka's AclOperation codes; without an authorizer everybody may do them."""
