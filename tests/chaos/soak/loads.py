"""Clients other than librdkafka that send without a pause: each is an idempotent producer in a separate process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from itertools import pairwise
from pathlib import Path

from tests.compat.driver_process import Driver
from tests.compat.steady_load import Verdict, find_doubles, read_partition

RATE = 300
"""Records per second of each client: most of the CPU is for the brokers."""


class ClientStream:
    """A client that sends the numbers from 0 on to partition 0 of the topic that has its name."""

    def __init__(self, client: str, address: str, directory: Path) -> None:
        self.topic = client
        self._address = address
        self._driver = Driver(client, address, directory / f"{client}.log")
        self._driver.ask("stream", topic=client, rate=RATE)
        self._end: dict[str, object] | None = None

    @property
    def acknowledged(self) -> Sized:
        """A sequence whose length is the number of acknowledgements so far."""
        count: int = self._driver.ask("stream_state", stop=False)["acknowledged"]
        return range(count)

    def stop(self) -> None:
        """Stop sending, and wait until every record in flight is acknowledged."""
        if self._end is not None:
            return
        try:
            self._end = self._driver.ask("stream_state", stop=True)
        finally:
            self._driver.kill()

    def verdict(self) -> Verdict:
        """Compare the leader's records with the acknowledged ones. The client must be stopped."""
        end = self._end
        assert end is not None
        sent, acknowledged, failures = end["sent"], end["acknowledged"], end["failures"]
        assert isinstance(sent, int)
        assert isinstance(acknowledged, list)
        assert isinstance(failures, list)
        assert not end["running"], f"{self.topic} does not end:\n{self._driver.log_tail()}"
        numbers = [int(value) for _, value in read_partition(self._address, self.topic, 0)]
        assert all(number < sent for number in numbers), "nobody sent that"
        times = Counter(numbers)
        doubled = [str(number).encode() for number, count in times.items() if count > 1]
        return Verdict(
            acknowledged=len(acknowledged),
            lost=len(set(acknowledged) - set(numbers)),
            doubled=sum(count - 1 for count in times.values()),
            reordered=sum(later < number for number, later in pairwise(numbers)),
            refused=failures,
            doubles=find_doubles(self._address, self.topic, 0, doubled) if doubled else [],
        )
