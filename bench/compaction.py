"""Compaction: how fast a log is cleaned, and how that affects producers and consumers."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from bench.brokers import Broker
from bench.load import Load

VERSIONS = 10
"""Records for each key."""
HELD_BACK = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}
RELEASED = "0.01"
TIMEOUT_S = 600
_POLL_S = 0.01


class CompactedTopic:
    """A topic that the cleaner ignores until `release`."""

    def __init__(self, broker: Broker, topic: str, segment_bytes: int) -> None:
        self.topic = topic
        self._admin = AdminClient({"bootstrap.servers": broker.address})
        self._directory = broker.directory / "data"
        config = {**HELD_BACK, "segment.bytes": str(segment_bytes)}
        self._admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(30)
        # On both sides the cleaner checks often, so that the result is its cleaning time, not its wait.
        self._alter(ResourceType.BROKER, "0", "log.cleaner.backoff.ms", "100")

    def _alter(self, kind: ResourceType, name: str, key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        self._admin.incremental_alter_configs([resource])[resource].result(30)

    def segments(self) -> list[Path]:
        """The log's segment files, in offset order."""
        return sorted((self._directory / f"{self.topic}-0").glob("*.log"))

    def release(self) -> None:
        """Let the cleaner work on the topic."""
        self._alter(ResourceType.TOPIC, self.topic, "min.cleanable.dirty.ratio", RELEASED)

    def clean_to(self) -> int:
        """The offset below which the log is clean, from the checkpoint of either kind of broker."""
        try:
            lines = (self._directory / "cleaner-offset-checkpoint").read_text().splitlines()
        except FileNotFoundError:
            return 0
        return next((int(line.split()[2]) for line in lines if line.startswith(f"{self.topic} 0 ")), 0)

    def await_clean(self, offset: int) -> None:
        """Wait until everything below `offset` is clean. Raises RuntimeError after `TIMEOUT_S`."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.clean_to() < offset:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.topic} is not clean up to {offset} after {TIMEOUT_S} s")
            time.sleep(_POLL_S)


def fill(load: Load, broker: Broker, topic: str, records: int, size: int) -> CompactedTopic:
    """An uncleaned topic of `records`, with each key VERSIONS times."""
    made = CompactedTopic(broker, topic, max(records * size // 10, 1 << 20))
    load.run("keyed", broker.address, topic, records, size, max(records // VERSIONS, 1))
    return made


def clean(topic: CompactedTopic) -> tuple[float, float, float]:
    """Release the cleaner; returns the bytes to clean, the bytes left of them, and the seconds taken."""
    *sealed, active = topic.segments()
    size = sum(path.stat().st_size for path in sealed)
    end = int(active.stem)
    began = time.monotonic()
    topic.release()
    topic.await_clean(end)
    taken_s = time.monotonic() - began
    left = sum(path.stat().st_size for path in topic.segments() if int(path.stem) < end)
    return size, left, taken_s


class Cleaning:
    """Runs `clean` on a separate thread, so that something else can be measured meanwhile."""

    def __init__(self, topic: CompactedTopic) -> None:
        self._topic = topic
        self._failure: Exception | None = None
        self.ended_s = 0.0
        self._thread = threading.Thread(target=self._run, name="cleaning")
        self._thread.start()

    def _run(self) -> None:
        try:
            clean(self._topic)
        except Exception as failure:  # noqa: BLE001 - passed on to `wait`
            self._failure = failure
        self.ended_s = time.monotonic()

    def wait(self) -> None:
        """Wait until cleaning is done; raises its exception, if any."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
