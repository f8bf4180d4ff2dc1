"""Describes and alters SCRAM credentials of users, without ever returning them (KIP-554)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from broker.controller.cluster_membership import ClusterMembership
from broker.network.registry import RequestContext, api
from broker.network.shares import Split
from broker.security.rights import ClientRequest, OnCluster
from cluster.quotas.entities import QuotaEntity
from cluster.security.scram_changes import NO_NAME, CredentialChange, changed, check, iterations_of
from environment.contract import Clock
from environment.slices import Slices, in_slices
from protocol.acl_types import AclOperation
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from zookeeper.coordination import CoordinationError

UserDescription = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
UserChange = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


class ControllerStatus(Protocol):
    """The controller, as far as this module needs it."""

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller."""
        ...


def _refuse_to_describe(
    asked: ClientRequest[DescribeUserScramCredentialsRequest], code: ErrorCode
) -> DescribeUserScramCredentialsResponse:
    """One result per requested user; as in Kafka, without the names."""
    refusal = UserDescription(user="", error_code=code, error_message=None, credential_infos=[])
    return DescribeUserScramCredentialsResponse(
        throttle_time_ms=0,
        error_code=code,
        error_message=None,
        results=[refusal for _ in asked.request.users or ()],
    )


def _refuse_to_alter(
    asked: ClientRequest[AlterUserScramCredentialsRequest], code: ErrorCode
) -> AlterUserScramCredentialsResponse:
    """Every user gets the error, existing or not."""
    request = asked.request
    users = {each.name for changes in (request.deletions, request.upsertions) for each in changes}
    return AlterUserScramCredentialsResponse(
        throttle_time_ms=0,
        results=[UserChange(user=user, error_code=code, error_message=None) for user in sorted(users)],
    )


class ScramUserHandlers:
    """Reads and writes the coordination tree for each request."""

    def __init__(
        self, membership: ClusterMembership, controller: ControllerStatus, changing: asyncio.Lock, clock: Clock
    ) -> None:
        """`changing` is held while users are changed."""
        self._membership = membership
        self._controller = controller
        self._changing = changing
        self._clock = clock

    @api(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        versions=(0, 0),
        right=OnCluster(AclOperation.DESCRIBE, refusal=_refuse_to_describe),
        reads_only=True,
        splits=[Split("users", unique=("name",))],
    )
    async def describe_user_scram_credentials(
        self,
        context: RequestContext,  # noqa: ARG002
        request: DescribeUserScramCredentialsRequest,
    ) -> DescribeUserScramCredentialsResponse:
        """Describe the credentials of these users, or of all users with credentials."""
        times = Counter(user.name for user in request.users or ())
        response = DescribeUserScramCredentialsResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, error_message="", results=[]
        )
        try:
            for name in sorted(times) or await self._membership.zk_client.users():
                described = await self._described(name, times[name])
                if described.credential_infos or times:
                    response.results.append(described)
        except CoordinationError as error:
            response.error_code, response.error_message = ErrorCode.REQUEST_TIMED_OUT, str(error)
        return response

    async def _described(self, name: str, times: int) -> UserDescription:
        code, message, found = ErrorCode.NONE, "", dict[int, int]()
        try:
            _check(name, times)
            found = iterations_of(await self._membership.zk_client.read_config(QuotaEntity(name).resource))
            if not found:
                text = f"Attempt to describe a user credential that does not exist: {name}"
                raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, text)
        except ApiError as error:
            code, message = error.error_code, error.message
        infos = [
            DescribeUserScramCredentialsResponse.CredentialInfo(mechanism=mechanism, iterations=iterations)
            for mechanism, iterations in found.items()
        ]
        return UserDescription(user=name, error_code=code, error_message=message, credential_infos=infos)

    @api(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        versions=(0, 0),
        right=OnCluster(AclOperation.ALTER, refusal=_refuse_to_alter),
        whole="changes of a user can be in both arrays",
    )
    async def alter_user_scram_credentials(
        self,
        context: RequestContext,  # noqa: ARG002
        request: AlterUserScramCredentialsRequest,
    ) -> AlterUserScramCredentialsResponse:
        """Change credentials, all or nothing per user. Only the controller does this."""
        slices = Slices(self._clock)
        by_user: dict[str, list[CredentialChange]] = {}
        async for change in in_slices(_changes(request), slices):
            by_user.setdefault(change.user, []).append(change)
        response = AlterUserScramCredentialsResponse(throttle_time_ms=0, results=[])
        async for user, changes in in_slices(by_user.items(), slices):
            result = UserChange(user=user, error_code=ErrorCode.NONE, error_message="")
            try:
                await self._change(user, changes)
            except ApiError as error:
                result.error_code, result.error_message = error.error_code, error.message or None
            response.results.append(result)
        return response

    async def _change(self, user: str, changes: list[CredentialChange]) -> None:
        if not self._controller.is_active:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "")
        check(changes)
        async with self._changing:
            await self._store(user, changes)

    async def _store(self, user: str, changes: list[CredentialChange]) -> None:
        zk_client, resource = self._membership.zk_client, QuotaEntity(user).resource
        try:
            config = changed(await zk_client.read_config(resource), changes)
            await self._membership.coordination.multi(await zk_client.config_operations({resource: config}))
        except CoordinationError as error:
            text = f"Whether the credentials have changed is not known: {error}"
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, text) from error


def _changes(request: AlterUserScramCredentialsRequest) -> Iterator[CredentialChange]:
    for deletion in request.deletions:
        yield CredentialChange(deletion.name, deletion.mechanism)
    for each in request.upsertions:
        salt, password = bytes(each.salt), bytes(each.salted_password)
        yield CredentialChange(each.name, each.mechanism, each.iterations, salt, password)


def _check(name: str, times: int) -> None:
    """Raise ApiError for a name that is empty or was requested twice."""
    if not name:
        raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, NO_NAME)
    if times > 1:
        reason = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        raise ApiError(ErrorCode.DUPLICATE_RESOURCE, reason)
