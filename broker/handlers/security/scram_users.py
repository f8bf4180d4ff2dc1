"""Users of SCRAM: their credentials are described and altered, never shown (KIP-554)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from broker.controller.cluster_membership import ClusterMembership
from broker.network.registry import RequestContext, api
from cluster.quotas.entities import QuotaEntity
from cluster.security.scram_changes import NO_NAME, CredentialChange, changed, iterations_of, refused
from cluster.zookeeper.coordination import CoordinationError
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode, detached
from protocol.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

UserDescription = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


class Office(Protocol):
    """The controller, as far as this module asks it."""

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller."""
        ...


class ScramUserHandlers:
    """Reads and writes the coordination tree for each request."""

    def __init__(self, membership: ClusterMembership, controller: Office, changing: asyncio.Lock) -> None:
        """`changing` is held while users are changed."""
        self._membership = membership
        self._controller = controller
        self._changing = changing

    @api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=(0, 0), reads_only=True)
    async def describe_user_scram_credentials(
        self,
        context: RequestContext,  # noqa: ARG002
        request: DescribeUserScramCredentialsRequest,
    ) -> DescribeUserScramCredentialsResponse:
        """Those of the users named, or of all that have some."""
        names = [user.name for user in request.users or ()]
        response = DescribeUserScramCredentialsResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, error_message="", results=[]
        )
        try:
            for name in sorted(set(names)) or await self._membership.zk_client.users():
                described = await self._described(name, names)
                if described.credential_infos or names:
                    response.results.append(described)
        except CoordinationError as error:
            response.error_code, response.error_message = ErrorCode.REQUEST_TIMED_OUT, str(error)
        return response

    async def _described(self, name: str, names: list[str]) -> UserDescription:
        code, message, found = ErrorCode.NONE, "", dict[int, int]()
        try:
            _check(name, names)
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

    @api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions=(0, 0))
    async def alter_user_scram_credentials(
        self,
        context: RequestContext,  # noqa: ARG002
        request: AlterUserScramCredentialsRequest,
    ) -> AlterUserScramCredentialsResponse:
        """Each user's changes are made as a whole, or not at all. Only the controller makes them."""
        changes = [CredentialChange(each.name, each.mechanism) for each in request.deletions]
        changes += [
            CredentialChange(each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password))
            for each in request.upsertions
        ]
        by_user: dict[str, list[CredentialChange]] = {}
        for change in changes:
            by_user.setdefault(change.user, []).append(change)
        if self._controller.is_active:
            errors = refused(changes)
            for user in [user for user in by_user if user not in errors]:
                try:
                    async with self._changing:
                        await self._change(user, by_user[user])
                except ApiError as error:
                    errors[user] = detached(error)
        else:
            errors = dict.fromkeys(by_user, ApiError(ErrorCode.NOT_CONTROLLER, ""))
        return AlterUserScramCredentialsResponse(throttle_time_ms=0, results=_results(by_user, errors))

    async def _change(self, user: str, changes: list[CredentialChange]) -> None:
        zk_client, resource = self._membership.zk_client, QuotaEntity(user).resource
        try:
            config = changed(await zk_client.read_config(resource), changes)
            await self._membership.coordination.multi(await zk_client.config_operations({resource: config}))
        except CoordinationError as error:
            text = f"Whether the credentials have changed is not known: {error}"
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, text) from error


def _results(
    users: Mapping[str, object], errors: Mapping[str, ApiError]
) -> list[AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult]:
    result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    return [
        result(user=user, error_code=ErrorCode.NONE, error_message="")
        if user not in errors
        else result(user=user, error_code=errors[user].error_code, error_message=errors[user].message or None)
        for user in users
    ]


def _check(name: str, names: list[str]) -> None:
    """Raise ApiError for an empty name, and for one that is asked for twice."""
    if not name:
        raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, NO_NAME)
    if names.count(name) > 1:
        reason = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        raise ApiError(ErrorCode.DUPLICATE_RESOURCE, reason)
