"""Delegation tokens in the coordination tree (KIP-48; Kafka class `DelegationTokenManagerZk`).

Kafka's brokers keep all tokens in memory. This one reads the tree each time, so a token is valid on all brokers once
created, and invalid on all once removed. Every change still leaves the notice that brokers of Apache Kafka expect.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.broker_environment import Environment
from broker.controller.cluster_membership import ClusterMembership
from broker.zookeeper.topic_reader import each_of
from cluster.security.delegation_token import (
    CHANGE_NOTICE,
    CHANGES,
    PERSISTENT_PATHS,
    TOKENS,
    DelegationToken,
    is_token_id,
    new_token,
    token_hmac,
    token_path,
)
from cluster.security.principal import Principal
from cluster.znodes import ZnodeFormatError
from protocol.errors import ApiError, ErrorCode
from security.authorization import TokenSettings
from security.sasl_exchange import ScramCredential, TokenCredential
from zookeeper.coordination import (
    BadVersionError,
    CoordinationError,
    Create,
    Delete,
    MultiError,
    NoNodeError,
    Operation,
    SetData,
)

logger = logging.getLogger("kafka.server.DelegationTokenManagerZk")

_MOST_ATTEMPTS: Final = 10
"""Maximum attempts to change a token when other writers come first."""
_MOST_CREDENTIALS: Final = 1000


class SignedToken(NamedTuple):
    """A token and its HMAC, which is its password and is never logged."""

    token: DelegationToken
    hmac: bytes

    def __repr__(self) -> str:
        return f"SignedToken({self.token})"


class DelegationTokenManager:
    """Creates, changes and finds tokens."""

    def __init__(self, membership: ClusterMembership, environment: Environment, settings: TokenSettings) -> None:
        self.settings: Final = settings
        self._membership = membership
        self._random = environment.random
        self._now_ms = environment.clock.now_ms
        self._executor = environment.executor
        self._ids: dict[bytes, str] = {}
        """Token ids by HMAC, as of the last listing."""
        self._credentials: dict[tuple[str, str], ScramCredential] = {}
        """Cached by token id and mechanism: deriving a credential takes milliseconds."""

    async def prepare(self) -> None:
        """Create the parents of all nodes. Raises CoordinationError."""
        await self._membership.zk_client.create_missing(PERSISTENT_PATHS)

    # -- requests ------------------------------------------------------------------------------------------------------

    async def create(
        self, owner: Principal, requester: Principal, renewers: tuple[Principal, ...], lifetime_ms: int
    ) -> SignedToken:
        """Create a token. `lifetime_ms` is its maximum lifetime; if not positive, the configured maximum applies.
        Raises ApiError.
        """
        settings = self.settings
        lifetime_ms = min(lifetime_ms, settings.max_lifetime_ms) if lifetime_ms > 0 else settings.max_lifetime_ms
        token = new_token(
            str(self._random.uuid()),
            owner,
            requester,
            renewers,
            self._now_ms(),
            lifetime_ms,
            settings.expiry_time_ms,
        )
        try:
            await self._write(Create(token_path(token.token_id), token.encode()), token.token_id)
        except CoordinationError as error:
            raise _unknown_outcome(error) from error
        logger.info("Created a delegation token: %s for owner: %s", token.token_id, owner)
        return SignedToken(token, token_hmac(settings.secret_key, token.token_id))

    async def renew(self, principal: Principal, hmac: bytes, period_ms: int) -> int:
        """Let a token expire after `period_ms`, or the default period if that is negative. Returns its new expiry time.

        Raises ApiError.
        """
        period_ms = self.settings.expiry_time_ms if period_ms < 0 else period_ms
        return await self._change(principal, hmac, lambda token, now_ms: token.ending(now_ms, period_ms))

    async def expire(self, principal: Principal, hmac: bytes, period_ms: int) -> int:
        """Let a token expire after `period_ms`, or remove it if that is negative. Returns the expiry time. Raises
        ApiError.
        """
        return await self._change(
            principal, hmac, lambda token, now_ms: None if period_ms < 0 else token.ending(now_ms, period_ms)
        )

    async def find(self, is_wanted: Callable[[DelegationToken], bool]) -> list[SignedToken]:
        """The wanted tokens, oldest first, including expired ones that are not removed yet. Raises ApiError."""
        try:
            tokens = await self._all()
        except CoordinationError as error:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"Tokens cannot be read: {error}") from error
        wanted = sorted(filter(is_wanted, tokens), key=lambda token: (token.issue_ms, token.token_id))
        return [SignedToken(token, token_hmac(self.settings.secret_key, token.token_id)) for token in wanted]

    # -- authentication and expiry -------------------------------------------------------------------------------------

    async def credential(self, token_id: str, mechanism: str) -> TokenCredential | None:
        """A token as a SCRAM credential. Raises CoordinationError, ZnodeFormatError.

        Returns None for a token whose owner is not of type User, because clients always are.
        """
        found = await self._read(token_id) if is_token_id(token_id) else None
        if found is None or found[0].owner.kind != "User":
            return None
        credential = self._credentials.get((token_id, mechanism))
        if credential is None:
            password = base64.b64encode(token_hmac(self.settings.secret_key, token_id)).decode()
            salt = self._random.uuid()
            credential = await self._executor.run(ScramCredential.from_password, mechanism, password, salt)
            if len(self._credentials) >= _MOST_CREDENTIALS:
                self._credentials.clear()
            self._credentials[token_id, mechanism] = credential
        return TokenCredential(found[0].owner.name, found[0].expiry_ms, credential)

    async def remove_expired(self) -> None:
        """Remove expired tokens and old notices. Must be called periodically, on the controller."""
        try:
            for token in await self._all():
                if token.has_expired(self._now_ms()):
                    await self._remove_if_expired(token.token_id)
            notices = await self._membership.zk_client.expired_notices(CHANGES)
            if notices:
                await self._membership.coordination.multi(notices)
        except CoordinationError as error:
            logger.warning("Expired delegation tokens are removed in the next round: %s", error)

    async def _remove_if_expired(self, token_id: str) -> None:
        """Check again before removing: it may have been renewed."""
        found = await self._read(token_id)
        if found is not None and found[0].has_expired(self._now_ms()):
            await self._write(Delete(token_path(token_id), found[1]), token_id)
            logger.info("Delegation token expired for token: %s for owner: %s", token_id, found[0].owner)

    # -- the tree ------------------------------------------------------------------------------------------------------

    async def _change(
        self, principal: Principal, hmac: bytes, changed: Callable[[DelegationToken, int], DelegationToken | None]
    ) -> int:
        """Replace a token with the result of `changed`, or remove it if that is None. Returns the expiry time."""
        try:
            for _ in range(_MOST_ATTEMPTS):
                token, version = await self._of_hmac(hmac)
                token.check_renewer(principal)
                now_ms = self._now_ms()
                wanted = changed(token, now_ms)
                path = token_path(token.token_id)
                write = Delete(path, version) if wanted is None else SetData(path, wanted.encode(), version)
                try:
                    await self._write(write, token.token_id)
                except MultiError as error:
                    if not isinstance(error.__cause__, BadVersionError | NoNodeError):
                        raise
                    continue
                end_ms = now_ms if wanted is None else wanted.expiry_ms
                logger.info("Delegation token %s of owner %s ends at %d", token.token_id, token.owner, end_ms)
                return end_ms
        except CoordinationError as error:
            raise _unknown_outcome(error) from error
        except ZnodeFormatError as error:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "the token is changed by others all the time")

    async def _of_hmac(self, hmac: bytes) -> tuple[DelegationToken, int]:
        if hmac not in self._ids:
            names = set((await self._membership.coordination.children(TOKENS))[0])
            self._ids = {known: token_id for known, token_id in self._ids.items() if token_id in names}
            new = filter(is_token_id, names.difference(self._ids.values()))
            self._ids |= {token_hmac(self.settings.secret_key, token_id): token_id for token_id in new}
        token_id = self._ids.get(hmac)
        found = None if token_id is None else await self._read(token_id)
        if found is None:
            raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "there is no token with this HMAC")
        return found

    async def _all(self) -> list[DelegationToken]:
        damaged = self._membership.zk_client.damaged

        async def token_of(token_id: str) -> DelegationToken | None:
            try:
                found = await self._read(token_id)
            except ZnodeFormatError as error:
                damaged.report(error, "nobody can use the token")
                return None
            damaged.is_readable(token_path(token_id))
            return None if found is None else found[0]

        names = (await self._membership.coordination.children(TOKENS))[0]
        tokens = await each_of(filter(is_token_id, names), token_of)
        return [token for token in tokens if token is not None]

    async def _read(self, token_id: str) -> tuple[DelegationToken, int] | None:
        """A token and the version of its node, or None if it does not exist."""
        try:
            data, stat = await self._membership.coordination.get(token_path(token_id))
        except NoNodeError:
            return None
        return (DelegationToken.decode(token_id, data), stat.version) if data else None

    async def _write(self, write: Operation, token_id: str) -> None:
        """Write, and leave a notice, in one transaction. In Kafka, a crash between the two loses the notice."""
        notice = Create(CHANGE_NOTICE, token_id.encode(), sequential=True)
        await self._membership.coordination.multi([write, notice])


def _unknown_outcome(error: CoordinationError) -> ApiError:
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, f"Whether the token has changed is not known: {error}")
