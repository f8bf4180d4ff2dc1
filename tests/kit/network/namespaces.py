"""A separate network for the processes of a test. It can drop packets between any two of them, also in one direction.

Each broker lives in a network namespace. One more namespace routes between the brokers, the test and ZooKeeper; the
last two stay where the test runs, but have separate addresses. A cut drops packets silently: connections hang as with a
broken switch, and neither end gets an error.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from typing import Self

from tests.kit.broker_process import Host

CLIENT, ZOOKEEPER = 100, 200
"""Hosts other than the brokers, which are 1, 2, ..."""
_ROUTER = 254
_numbers = itertools.count()


class NamespacesRefusedError(Exception):
    """The test does not run as root, or the kernel does not support network namespaces."""


class NetworkNamespaces:
    """Hosts 1 to `brokers`, `CLIENT` and `ZOOKEEPER`. A context manager, which raises NamespacesRefusedError if the
    machine does not allow it.
    """

    def __init__(self, brokers: int) -> None:
        self.brokers = tuple(range(1, brokers + 1))
        self.hosts = (*self.brokers, CLIENT, ZOOKEEPER)
        self._cuts: set[tuple[int, int]] = set()
        self._cleanup = contextlib.ExitStack()
        self._name = f"odradek-{os.getpid()}-{next(_numbers)}"
        self._subnet = ""

    def __enter__(self) -> Self:
        if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
            raise NamespacesRefusedError("only root, with iproute2 and nsenter, can make network namespaces")
        try:
            self._build()
        except subprocess.CalledProcessError as error:
            self._cleanup.close()
            raise NamespacesRefusedError(f"no network namespaces here: {error.stderr.strip()}") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def host(self, number: int) -> Host:
        """The placement of a process on this host. Clients run where the test does."""
        command = ("nsenter", f"--net=/run/netns/{self._namespace(number)}") if number in self.brokers else ()
        return Host(self._address(number), command)

    def cut(self, source: int, target: int, *, one_way: bool = False) -> None:
        """Drop the packets from `source` to `target`, and unless `one_way` those in the other direction too."""
        for pair in ((source, target), (target, source))[: 1 if one_way else None]:
            if pair not in self._cuts:
                self._cuts.add(pair)
                self._rule("add", *pair)

    def heal(self, source: int, target: int) -> None:
        """Restore both directions."""
        for pair in ((source, target), (target, source)):
            if pair in self._cuts:
                self._cuts.remove(pair)
                self._rule("del", *pair)

    def isolate(self, host: int) -> None:
        """Cut a host off from all others."""
        for other in self.hosts:
            if other != host:
                self.cut(host, other)

    def heal_all(self) -> None:
        """Remove all cuts."""
        for pair in list(self._cuts):
            self.heal(*pair)

    # -- namespaces ----------------------------------------------------------------------------------------------------

    def _address(self, host: int) -> str:
        return f"{self._subnet}.{host}"

    def _namespace(self, broker: int) -> str:
        return f"{self._name}-{broker}"

    def _rule(self, action: str, source: int, target: int) -> None:
        between = ("from", self._address(source), "to", self._address(target))
        _ip("-n", self._name, "rule", action, *between, "pref", "10", "blackhole")

    def _build(self) -> None:
        self._add_namespace(self._name)
        _ip("netns", "exec", self._name, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        self._connect_test()
        for broker in self.brokers:
            namespace = self._namespace(broker)
            self._add_namespace(namespace)
            _ip("link", "add", f"b{broker}", "netns", self._name, "type", "veth", "peer", "eth0", "netns", namespace)
            _ip("-n", namespace, "address", "add", f"{self._address(broker)}/32", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "link", "set", "eth0", "up")
            _ip("-n", namespace, "route", "add", self._address(_ROUTER), "dev", "eth0")
            _ip("-n", namespace, "route", "add", "default", "via", self._address(_ROUTER))
            self._route(f"b{broker}", broker)

    def _connect_test(self) -> None:
        link = f"odr{os.getpid() % 10**7}x{self._name.rpartition('-')[2]}"
        _ip("link", "add", link, "type", "veth", "peer", "test", "netns", self._name)
        self._cleanup.callback(_ip, "link", "delete", link)
        self._subnet = _claim_subnet(link)
        for host in (CLIENT, ZOOKEEPER):
            _ip("address", "add", f"{self._address(host)}/32", "dev", link)
        through = ("via", self._address(_ROUTER), "src", self._address(CLIENT))
        _ip("route", "replace", f"{self._subnet}.0/24", *through, "dev", link, "onlink")
        self._route("test", CLIENT, ZOOKEEPER)

    def _route(self, link: str, *hosts: int) -> None:
        _ip("-n", self._name, "address", "add", f"{self._address(_ROUTER)}/32", "dev", link)
        _ip("-n", self._name, "link", "set", link, "up")
        for host in hosts:
            _ip("-n", self._name, "route", "add", self._address(host), "dev", link)

    def _add_namespace(self, name: str) -> None:
        _ip("netns", "add", name)
        self._cleanup.callback(_ip, "netns", "delete", name)


def _claim_subnet(link: str) -> str:
    """The first three bytes of an unused subnet, routed to a link that is now up."""
    _ip("link", "set", link, "up")
    for number in range(256):
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("route", "add", f"10.77.{number}.0/24", "dev", link)
            return f"10.77.{number}"
    raise AssertionError("all of 10.77.0.0/16 is in use")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
