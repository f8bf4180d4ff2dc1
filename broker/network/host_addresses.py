"""Addresses of clients as Java writes them, which Kafka shows and compares."""

from __future__ import annotations


def host_address(address: str) -> str:
    """An IP address as Java's `InetAddress.getHostAddress` has it: IPv6 in full, without zeros in front."""
    if ":" not in address:
        return address
    from ipaddress import IPv6Address

    groups = IPv6Address(address.partition("%")[0]).exploded.split(":")
    return ":".join(f"{int(group, 16):x}" for group in groups)
