"""Access control lists of nodes (ZooKeeper's ZooDefs.Perms, PrepRequestProcessor.fixupACL,
ZooKeeperServer.checkACL).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import IntFlag
from typing import Final, NamedTuple


class Permission(IntFlag):
    """Kinds of access. CREATE and DELETE apply to a node's children."""

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16


class AuthId(NamedTuple):
    """One proven identity of a connection, such as ("digest", "alice:<hash>") or ("ip", "10.0.0.7")."""

    scheme: str
    id: str


class AclEntry(NamedTuple):
    """Permission bits for the identities that match `scheme` and `id`."""

    permissions: int
    scheme: str
    id: str


Acl = tuple[AclEntry, ...]
AuthIds = tuple[AuthId, ...]

OPEN: Final[Acl] = (AclEntry(31, "world", "anyone"),)
"""Anyone may do anything."""
_AUTHENTICATED: Final = frozenset({"digest", "sasl", "x509"})
"""Schemes with proven identities; an address proves nothing."""


def resolved(wanted: Iterable[AclEntry], identities: AuthIds, schemes: Collection[str]) -> Acl:
    """The list as a node stores it: without duplicates, and with `auth` replaced by the requester's identities.

    Returns an empty list if the wanted one is invalid: it is empty, has a scheme outside `schemes` or an id that the
    scheme does not allow, or uses `auth` although the requester is not authenticated.
    """
    entries: dict[AclEntry, None] = {}
    for entry in dict.fromkeys(wanted):
        if entry.scheme == "auth":
            owners = [each for each in identities if each.scheme in _AUTHENTICATED]
            if not owners:
                return ()
            entries |= dict.fromkeys(AclEntry(entry.permissions, *owner) for owner in owners)
        elif _is_valid(entry, schemes):
            entries[entry] = None
        else:
            return ()
    acl = tuple(entries)
    return OPEN if acl == OPEN else acl


def is_allowed(acl: Acl, permission: int, identities: AuthIds) -> bool:
    """Whether one of `identities` has at least one of the bits in `permission`."""
    return acl is OPEN or any(entry.permissions & permission and _is_named(entry, identities) for entry in acl)


def without_hashes(acl: Acl) -> Acl:
    """The list as shown to a client that may read the node but not administer it."""
    return tuple(
        entry._replace(id=f"{entry.id.partition(':')[0]}:x") if entry.scheme == "digest" else entry for entry in acl
    )


def _is_named(entry: AclEntry, identities: AuthIds) -> bool:
    _, scheme, name = entry
    if scheme == "world":
        return name == "anyone"
    if scheme == "ip":
        return any(each.scheme == "ip" and _is_in_network(each.id, name) for each in identities)
    return AuthId(scheme, name) in identities


def _is_valid(entry: AclEntry, schemes: Collection[str]) -> bool:
    _, scheme, name = entry
    if scheme == "world":
        return name == "anyone"
    if scheme not in schemes:
        return False
    if scheme == "digest":
        _, colon, secret = name.partition(":")
        return bool(colon and secret) and ":" not in secret
    return _network(name) is not None if scheme == "ip" else True


# -- addresses ---------------------------------------------------------------------------------------------------------


def _network(text: str) -> tuple[int, int] | None:
    """An IPv4 address as a number, and its prefix length, or None for anything else."""
    address, slash, bits = text.partition("/")
    parts = address.split(".")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() and int(part) < 256 for part in parts):
        return None
    if slash and not (bits.isascii() and bits.isdigit() and int(bits) <= 32):
        return None
    return int.from_bytes(map(int, parts)), int(bits) if slash else 32


def _is_in_network(address: str, network: str) -> bool:
    there, where = _network(address), _network(network)
    if there is None or where is None:
        return False
    ignored = 32 - where[1]
    return there[0] >> ignored == where[0] >> ignored
