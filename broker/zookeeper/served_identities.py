"""Who a connection of a ZooKeeper client has shown to be (ZooKeeper's DigestAuthenticationProvider and others)."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from broker.zookeeper.digest_md5 import DigestMd5Server
from cluster.zookeeper.access_control import Identities, Identity, resolved
from cluster.zookeeper.wire_format import ResolveAcl
from protocol.value import Value

_SCHEMES: Final = frozenset({"ip", "digest"})


class ServedUsers(Value):
    """Those whom the server knows: passwords by name for SASL (None: it speaks no SASL), and whether access control
    lists may name them. `new_nonce` gives text that nobody can guess.
    """

    new_nonce: Callable[[], str]
    passwords: Mapping[str, str] | None = None
    may_be_listed: bool = False


class ServedIdentities:
    """The identities of one connection. `address` is where it comes from."""

    def __init__(self, address: str, users: ServedUsers) -> None:
        self._sasl = None if users.passwords is None else DigestMd5Server(users.passwords, users.new_nonce)
        self._schemes = _SCHEMES | {"sasl"} if users.may_be_listed else _SCHEMES
        # An address of IPv4 that came to a socket of IPv6.
        self.all: Identities = (Identity("ip", address.removeprefix("::ffff:")),)
        """In the order in which they were shown; replaced, not changed, when one is added."""

    def resolver(self) -> ResolveAcl:
        """Makes lists of what is wanted now."""
        return partial(resolved, identities=self.all, schemes=self._schemes)

    def add(self, scheme: str, credentials: bytes) -> bool:
        """Take what AddAuth says; gives whether it is a scheme that needs no more."""
        if scheme == "digest":
            self._add(digest_identity(credentials))
        return scheme in _SCHEMES

    def evaluate(self, token: bytes) -> bytes | None:
        """The answer to the next message of SASL; null from a server that speaks none. Raises RefusedError."""
        if self._sasl is None:
            return None
        answer = self._sasl.evaluate(token)
        if self._sasl.username is not None:
            self._add(Identity("sasl", self._sasl.username))
        return answer

    def _add(self, identity: Identity) -> None:
        if identity not in self.all:
            self.all = (*self.all, identity)


def digest_identity(credentials: bytes) -> Identity:
    """The user, and a hash of `user:password`. Bytes that are not UTF-8 are read as Java does."""
    text = credentials.decode(errors="replace")
    secret = b64encode(hashlib.sha1(text.encode()).digest()).decode()  # noqa: S324 - the scheme's own
    return Identity("digest", f"{text.partition(':')[0]}:{secret}")
