"""The requests of a connection that wait, and those that they let pass."""

from __future__ import annotations

from broker.network.registry import ANYTHING
from protocol.api_keys import ApiKey


class Barriers(dict[frozenset[ApiKey], int]):
    """How many waiting requests let only these APIs pass, by set of APIs. Empty: everything passes."""

    __slots__ = ()

    def put_up(self, lets_pass: frozenset[ApiKey]) -> None:
        """A request waits that lets only these pass."""
        if lets_pass is not ANYTHING:
            self[lets_pass] = self.get(lets_pass, 0) + 1

    def take_down(self, lets_pass: frozenset[ApiKey]) -> None:
        """One such request waits no more."""
        if lets_pass is ANYTHING:
            return
        left = self[lets_pass] - 1
        if left:
            self[lets_pass] = left
        else:
            del self[lets_pass]

    def let_pass(self, frame: memoryview) -> bool:
        """Whether all who wait let the request in `frame` pass."""
        api_key = int.from_bytes(frame[:2], "big")  # the frame may be shorter
        for lets_pass in self:  # noqa: SIM110  all() takes thrice as long, for each of many requests
            if api_key not in lets_pass:
                return False
        return True
