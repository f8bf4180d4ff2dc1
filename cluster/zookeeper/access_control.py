"""Who may do what with a node (ZooKeeper's ZooDefs.Perms, PrepRequestProcessor.fixupACL, ZooKeeperServer.checkACL)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import IntFlag
from typing import Final, NamedTuple


class Permission(IntFlag):
    """Kinds of access. CREATE and DELETE are about a node's children."""

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16


class Identity(NamedTuple):
    """One of those that a connection has shown to be: ("digest", "alice:<hash>"), ("ip", "10.0.0.7")."""

    scheme: str
    id: str


class AclEntry(NamedTuple):
    """Permissions, as bits, of whoever `scheme` and `id` name."""

    permissions: int
    scheme: str
    id: str


Acl = tuple[AclEntry, ...]
Identities = tuple[Identity, ...]

OPEN: Final[Acl] = (AclEntry(31, "world", "anyone"),)
"""Everybody may do everything."""
_AUTHENTICATED: Final = frozenset({"digest", "sasl", "x509"})
"""Schemes whose identities are proven; an address proves nothing."""


def resolved(wanted: Iterable[AclEntry], identities: Identities, schemes: Collection[str]) -> Acl:
    """The list as a node keeps it: each entry once, and `auth` replaced by the identities that asked for it.

    An empty list stands for one that cannot be kept: it was empty, has a scheme that is not in `schemes` or an id that
    the scheme does not allow, or says `auth` where nobody has authenticated.
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


def is_allowed(acl: Acl, permission: int, identities: Identities) -> bool:
    """Whether one of `identities` has one of the bits of `permission`."""
    return acl is OPEN or any(entry.permissions & permission and _is_named(entry, identities) for entry in acl)


def without_hashes(acl: Acl) -> Acl:
    """The list as it is shown to who may read the node, but not administer it."""
    return tuple(
        entry._replace(id=f"{entry.id.partition(':')[0]}:x") if entry.scheme == "digest" else entry for entry in acl
    )


def _is_named(entry: AclEntry, identities: Identities) -> bool:
    _, scheme, name = entry
    if scheme == "world":
        return name == "anyone"
    if scheme == "ip":
        return any(each.scheme == "ip" and _is_in_network(each.id, name) for each in identities)
    return Identity(scheme, name) in identities


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
    """The address of IPv4 as a number, and how many of its first bits count; None for anything else."""
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
