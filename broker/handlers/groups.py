"""Classic groups: membership and administration (Kafka's KafkaApis with the GroupCoordinatorAdapter)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from broker.groups.group_coordinator_service import GroupCoordinatorService
from broker.network.registry import ANYTHING, NOTHING, Later, RequestContext, api
from broker.network.shares import Split
from broker.security.access import OPEN, Access, Client, host_address
from broker.security.rights import ClientRequest, OnGroup, Outcome, then
from cluster.coordinators.results import PendingResponse
from cluster.groups.membership_events import (
    PROTOCOLS_OF_A_MEMBER,
    DepartingMember,
    JoiningMember,
    LeaveGroupResult,
    distinct,
    join_error,
    make_joining_member,
    sync_error,
)
from environment.slices import in_slices
from protocol.acl_types import AclOperation, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.value import maker
from protocol.wire.wire_types import SMALL_ELEMENTS

if TYPE_CHECKING:
    from cluster.groups.shard import GroupDescription

FIRST_JOIN_WITH_REQUIRED_MEMBER_ID: Final = 4
FIRST_JOIN_WITH_SKIPPED_ASSIGNMENT: Final = 9
FIRST_JOIN_WITH_NULL_PROTOCOL: Final = 7
FIRST_SYNC_WITH_PROTOCOL: Final = 5
FIRST_LEAVE_OF_MANY: Final = 3

CLASSIC_GROUP_TYPE: Final = "classic"

DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED

make_heartbeat_response = maker(HeartbeatResponse)

R = TypeVar("R")
S = TypeVar("S")


def _refuse_to_join(asked: ClientRequest[JoinGroupRequest], code: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=code,
        protocol_name=None if asked.context.api_version >= FIRST_JOIN_WITH_NULL_PROTOCOL else "",
        leader="",
        member_id="",
        members=[],
    )


class GroupHandlers:
    """Handles the groups coordinated here."""

    def __init__(self, service: GroupCoordinatorService, access: Access = OPEN) -> None:
        self._service = service
        self._access = access

    # -- membership ----------------------------------------------------------------------------------------------------

    @api(
        ApiKey.JOIN_GROUP,
        versions=(0, 9),
        right=OnGroup(AclOperation.READ, _refuse_to_join),
        lazy="protocols",
        whole="a member has one set of protocols",
    )
    def join_group(
        self, context: RequestContext, request: JoinGroupRequest
    ) -> JoinGroupResponse | Later[JoinGroupResponse]:
        """Reply when the next generation begins."""
        outcome: JoinGroupResponse | PendingResponse[JoinGroupResponse]
        try:
            runtime = self._service.runtime_of(request.group_id)
            if len(request.protocols) > PROTOCOLS_OF_A_MEMBER:
                many = f"{len(request.protocols)} protocols; {PROTOCOLS_OF_A_MEMBER} are allowed"
                raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, many)
            now = runtime.now()
            joining = _joining(context, request)
            outcome = runtime.finish(now, runtime.shard.membership.join(now, request.group_id, joining))
        except ApiError as error:
            outcome = join_error(request.member_id, error.error_code)
        allows_null = context.api_version >= FIRST_JOIN_WITH_NULL_PROTOCOL
        return self._service.responses.respond_later(outcome, None if allows_null else _without_null, ANYTHING)

    def _guard_sync(self, asked: ClientRequest[SyncGroupRequest]) -> Outcome:
        """READ on the group. Incomplete requests are refused first."""
        request = asked.request
        if _is_incomplete(asked.context, request) or _may(asked.client, AclOperation.READ, request.group_id):
            return asked.proceed()
        return SyncGroupResponse(error_code=DENIED, assignment=b"")

    @api(
        ApiKey.SYNC_GROUP,
        versions=(0, 5),
        right=_guard_sync,
        lazy="assignments",
        whole="an assignment is one record",
    )
    def sync_group(
        self, context: RequestContext, request: SyncGroupRequest
    ) -> SyncGroupResponse | Later[SyncGroupResponse] | Awaitable[SyncGroupResponse]:
        """Reply when the leader's assignment is committed."""
        if _is_incomplete(context, request):
            return sync_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if len(request.assignments) > SMALL_ELEMENTS:
            return self._sync_in_slices(request)
        assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
        return self._service.responses.respond_later(self._sync(request, assignments), None, ANYTHING)

    async def _sync_in_slices(self, request: SyncGroupRequest) -> SyncGroupResponse:
        """Like `sync_group`, for many assignments. Assignments to unknown members are dropped."""
        assignments: dict[str, bytes] = {}
        try:
            group = self._service.runtime_of(request.group_id).shard.groups.get(request.group_id)
        except ApiError:
            group = None
        async for each in in_slices(request.assignments if group is not None else (), self._service.clock):
            if group is not None and each.member_id in group.members:
                assignments[each.member_id] = bytes(each.assignment)
        response = self._service.responses.respond(self._sync(request, assignments), lambda answer: answer)
        return response if isinstance(response, SyncGroupResponse) else await response

    def _sync(
        self, request: SyncGroupRequest, assignments: dict[str, bytes]
    ) -> SyncGroupResponse | PendingResponse[SyncGroupResponse]:
        try:
            runtime = self._service.runtime_of(request.group_id)
            now = runtime.now()
            protocol_type, protocol_name = request.protocol_type, request.protocol_name
            sync = runtime.shard.membership.sync
            return runtime.finish(now, sync(now, request.group_id, request, protocol_type, protocol_name, assignments))
        except ApiError as error:
            # Clients do not expect this code here; after a rebalance they join again, at this coordinator.
            loads = error.error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return sync_error(ErrorCode.REBALANCE_IN_PROGRESS if loads else error.error_code)

    @api(
        ApiKey.HEARTBEAT,
        versions=(0, 4),
        right=OnGroup(AclOperation.READ, lambda _, code: HeartbeatResponse(error_code=code)),
    )
    def heartbeat(
        self,
        context: RequestContext,  # noqa: ARG002
        request: HeartbeatRequest,
    ) -> HeartbeatResponse | Later[HeartbeatResponse]:
        """Keep a member alive."""
        outcome: ErrorCode | PendingResponse[ErrorCode]
        try:
            runtime = self._service.runtime_of(request.group_id)
            now = runtime.now()
            outcome = runtime.finish(now, runtime.shard.membership.heartbeat(now, request.group_id, request))
        except ApiError as error:
            # The members are unknown until the group is loaded, so every heartbeat is accepted.
            loads = error.error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            outcome = ErrorCode.NONE if loads else error.error_code
        return self._service.responses.respond_later(outcome, _heartbeat_response, NOTHING)

    @api(
        ApiKey.LEAVE_GROUP,
        versions=(0, 5),
        right=OnGroup(AclOperation.READ, lambda _, code: LeaveGroupResponse(error_code=code, members=[])),
        splits=[Split("members")],
    )
    def leave_group(
        self, context: RequestContext, request: LeaveGroupRequest
    ) -> LeaveGroupResponse | Later[LeaveGroupResponse]:
        """Remove members. Before v3 there is one, whose error is the error of the response."""
        translate: Callable[[LeaveGroupResult], LeaveGroupResponse]
        if context.api_version < FIRST_LEAVE_OF_MANY:
            leaving = [DepartingMember(request.member_id)]
            translate = _old_leave_response
        else:
            leaving = [DepartingMember(each.member_id, each.group_instance_id, each.reason) for each in request.members]
            translate = partial(_leave_response, leaving)
        outcome: LeaveGroupResult | PendingResponse[LeaveGroupResult]
        try:
            runtime = self._service.runtime_of(request.group_id)
            outcome = runtime.handle(runtime.shard.membership.leave, request.group_id, leaving)
        except ApiError as error:
            outcome = LeaveGroupResult(error.error_code)
        return self._service.responses.respond_later(outcome, translate, NOTHING)

    # -- administration ------------------------------------------------------------------------------------------------

    def _guard_describe(self, asked: ClientRequest[DescribeGroupsRequest]) -> Outcome:
        """DESCRIBE on each group. Each occurrence is checked, so that repeated groups are logged repeatedly."""
        groups = asked.request.groups
        denied = {group_id for group_id in groups if not _may(asked.client, AclOperation.DESCRIBE, group_id)}
        refusals = [_described(group_id, None, DENIED) for group_id in groups if group_id in denied]
        return asked.without("groups", denied.__contains__, refusals, "groups")

    @api(
        ApiKey.DESCRIBE_GROUPS,
        versions=(0, 5),
        right=_guard_describe,
        reads_only=True,
        splits=[Split("groups")],
    )
    async def describe_groups(self, context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        """Describe groups and their members."""
        response = DescribeGroupsResponse(groups=[])
        client = self._access.client(context, "DescribeGroups") if request.include_authorized_operations else None
        async for group_id in in_slices(request.groups, self._service.clock):
            response.groups.append(self._describe(group_id, client))
        return response

    def _describe(self, group_id: str, client: Client | None) -> DescribeGroupsResponse.DescribedGroup:
        try:
            group = self._service.runtime_of(group_id, may_be_empty=True).shard.describe(group_id)
        except ApiError as error:
            return _described(group_id, None, error.error_code)
        described = _described(group_id, group, ErrorCode.NONE)
        if client is not None:
            described.authorized_operations = client.operations(ResourceType.GROUP, group_id)
        return described

    def _guard_list(self, asked: ClientRequest[ListGroupsRequest]) -> Outcome:
        """DESCRIBE on the cluster shows all groups; otherwise, on each group."""
        client = asked.client
        if client.may_in_cluster(AclOperation.DESCRIBE, logs_denial=False):
            return asked.proceed()

        def visible(response: ListGroupsResponse) -> ListGroupsResponse:
            names = [group.group_id for group in response.groups]
            denied = client.denied(AclOperation.DESCRIBE, ResourceType.GROUP, names, logs_denial=False)
            response.groups = [group for group in response.groups if group.group_id not in denied]
            return response

        return then(asked.proceed(), visible)

    @api(
        ApiKey.LIST_GROUPS,
        versions=(0, 5),
        right=_guard_list,
        reads_only=True,
        whole="its arrays are filters",
    )
    async def list_groups(
        self,
        context: RequestContext,  # noqa: ARG002
        request: ListGroupsRequest,
    ) -> ListGroupsResponse:
        """List the groups coordinated here, filtered by state and type (KIP-518, KIP-848)."""
        states = {state.lower() for state in request.states_filter}
        types = {group_type.lower() for group_type in request.types_filter}
        loads = self._service.is_loading
        response = ListGroupsResponse(
            error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loads else ErrorCode.NONE, groups=[]
        )
        if types and CLASSIC_GROUP_TYPE not in types:
            return response
        groups = [group for runtime in self._service.runtimes() for group in runtime.shard.groups.values()]
        async for group in in_slices(groups, self._service.clock):
            if not states or group.state.value.lower() in states:
                response.groups.append(
                    ListGroupsResponse.ListedGroup(
                        group_id=group.group_id,
                        protocol_type=group.protocol_type or "",
                        group_state=group.state.value,
                        group_type=CLASSIC_GROUP_TYPE,
                    )
                )
        return response

    def _guard_delete(self, asked: ClientRequest[DeleteGroupsRequest]) -> Outcome:
        """DELETE on each group."""
        names = dict.fromkeys(asked.request.groups_names)
        denied = asked.client.denied(AclOperation.DELETE, ResourceType.GROUP, names)
        refusals = [
            DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=DENIED)
            for group_id in names
            if group_id in denied
        ]
        return asked.without("groups_names", denied.__contains__, refusals, "results")

    @api(
        ApiKey.DELETE_GROUPS,
        versions=(0, 2),
        right=_guard_delete,
        splits=[Split("groups_names", unique=("groups_names",))],
    )
    async def delete_groups(
        self,
        context: RequestContext,  # noqa: ARG002
        request: DeleteGroupsRequest,
    ) -> DeleteGroupsResponse:
        """Delete groups without members."""
        outcomes: dict[str, ErrorCode | asyncio.Future[ErrorCode]] = {}
        async for group_id in in_slices(request.groups_names, self._service.clock):
            if group_id not in outcomes:
                outcomes[group_id] = self._delete(group_id)
        return DeleteGroupsResponse(
            throttle_time_ms=0,
            results=[
                DeleteGroupsResponse.DeletableGroupResult(
                    group_id=group_id,
                    error_code=outcome if isinstance(outcome, ErrorCode) else await outcome,
                )
                for group_id, outcome in outcomes.items()
            ],
        )

    def _delete(self, group_id: str) -> ErrorCode | asyncio.Future[ErrorCode]:
        try:
            runtime = self._service.runtime_of(group_id, may_be_empty=True)
        except ApiError as error:
            return error.error_code
        outcome = runtime.handle(runtime.shard.offsets.delete_group, group_id)
        return self._service.responses.respond(outcome, ErrorCode)


def _may(client: Client, operation: AclOperation, group_id: str) -> bool:
    return client.may(operation, ResourceType.GROUP, group_id)


def _is_incomplete(context: RequestContext, request: SyncGroupRequest) -> bool:
    """Whether a version that must name the protocol does not."""
    names_missing = request.protocol_type is None or request.protocol_name is None
    return context.api_version >= FIRST_SYNC_WITH_PROTOCOL and names_missing


def _joining(context: RequestContext, request: JoinGroupRequest) -> JoiningMember:
    # JoinGroup v0 uses the session timeout as rebalance timeout.
    timeout_ms = request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
    return make_joining_member(
        request.member_id,
        request.group_instance_id,
        context.client_id or "",
        "/" + host_address(context.client_address),
        request.session_timeout_ms,
        timeout_ms,
        request.protocol_type,
        distinct([(each.name, bytes(each.metadata)) for each in request.protocols]),
        request.reason,
        requires_known_member_id=context.api_version >= FIRST_JOIN_WITH_REQUIRED_MEMBER_ID,
        skips_assignment=context.api_version >= FIRST_JOIN_WITH_SKIPPED_ASSIGNMENT,
    )


def _without_null(response: JoinGroupResponse) -> JoinGroupResponse:
    """Replace a null protocol name by "", for versions that cannot encode null."""
    response.protocol_name = response.protocol_name or ""
    return response


def _heartbeat_response(error_code: ErrorCode) -> HeartbeatResponse:
    return make_heartbeat_response(error_code=error_code)


def _old_leave_response(left: LeaveGroupResult) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=left.error_code or left.members[0])


def _leave_response(leaving: list[DepartingMember], left: LeaveGroupResult) -> LeaveGroupResponse:
    return LeaveGroupResponse(
        error_code=left.error_code,
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=error_code
            )
            for each, error_code in zip(leaving, left.members, strict=False)  # empty if the group refused
        ],
    )


def _described(
    group_id: str, group: GroupDescription | None, error_code: ErrorCode
) -> DescribeGroupsResponse.DescribedGroup:
    described = DescribeGroupsResponse.DescribedGroup(
        error_code=error_code, group_id=group_id, group_state="", protocol_type="", protocol_data="", members=[]
    )
    if group is not None:
        described.group_state = group.state.value
        described.protocol_type = group.protocol_type
        described.protocol_data = group.protocol_name
        described.members = [
            DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ]
    return described
