"""The SCRAM credentials of users, and fake ones for unknown users."""

from __future__ import annotations

import hmac
import re
from itertools import islice
from typing import Final

from broker.controller.cluster_membership import ClusterMembership
from broker.metadata.metadata_cache import MetadataCache
from cluster.quotas.entities import QuotaEntity
from cluster.znodes import SCRAM_SECRET
from environment.contract import Random
from protocol.scram_mechanisms import HASHES, MIN_ITERATIONS
from security.sasl_exchange import ScramCredential
from zookeeper.coordination import NodeExistsError, NoNodeError

MOST_USERS: Final = 1_000
"""Limits how many users are inspected for their iterations, to not block the event loop."""
_ITERATIONS: Final = re.compile(r"(?:^|,)iterations=(\d+)")


class ScramCredentials:
    """Looks up credentials in the coordination tree.

    The challenge of SCRAM contains the user's salt and iterations, so it must not reveal which users exist. An unknown
    user gets both, derived from the name and a secret in the tree: the same on every broker and after a restart.
    """

    def __init__(self, membership: ClusterMembership, metadata: MetadataCache, random: Random) -> None:
        self._membership = membership
        self._metadata = metadata
        self._random = random
        self._secret = b""
        self._configs: object = None
        self._iterations: dict[str, list[int]] = {}
        """The distinct iteration counts in `_configs`, by mechanism."""

    async def find(self, user: str, mechanism: str) -> ScramCredential:
        """The credential of `user`, or one that no password matches. Raises CoordinationError, and ValueError for a
        damaged credential.
        """
        text = (await self._membership.zk_client.read_config(QuotaEntity(user).resource)).get(mechanism)
        if text is not None:
            return ScramCredential.from_text(text)
        if not self._secret:
            self._secret = await self._read_secret()
        return ScramCredential.invented(mechanism, user, self._secret, self._choose_iterations(user, mechanism))

    async def _read_secret(self) -> bytes:
        """The secret of the cluster, created by the first broker that needs it."""
        coordination = self._membership.coordination
        try:
            return (await coordination.get(SCRAM_SECRET))[0] or b""
        except NoNodeError:
            secret = self._random.uuid() + self._random.uuid()
            try:
                await coordination.create(SCRAM_SECRET, secret)
            except NodeExistsError:
                return (await coordination.get(SCRAM_SECRET))[0] or b""
            return secret

    def _choose_iterations(self, user: str, mechanism: str) -> int:
        """Choose an iteration count that real users have. A name keeps its count when users are added or removed, as
        long as any user has that count (rendezvous hashing).
        """
        configs = self._metadata.image.configs
        if configs is not self._configs:
            self._configs = configs
            users = islice((config for (kind, _), config in configs.items() if kind < 0), MOST_USERS)
            self._iterations = {each: [] for each in HASHES}
            for config in users:
                for each, found in self._iterations.items():
                    number = _ITERATIONS.search(config.get(each, ""))
                    if number is not None and int(number[1]) not in found:
                        found.append(int(number[1]))

        def rank(iterations: int) -> bytes:
            return hmac.digest(self._secret, f"{iterations} {mechanism} {user}".encode(), HASHES[mechanism])

        return max(self._iterations[mechanism] or (MIN_ITERATIONS,), key=rank)
