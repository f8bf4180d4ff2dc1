"""`scripts/request-files`: the files of the broker that one request enters, which a reader has to open."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.group_offsets import OffsetCommitRequest
from protocol.messages.topics import CreateTopicsRequest
from protocol.wire.schema import Request
from tests.kit.broker_process import ROOT
from tests.kit.in_process import InProcessBroker, Wire
from tests.kit.wire_requests import fetch, produce

COUNTED: Final = ("broker/", "cluster/", "storage/", "zookeeper/", "environment/slices.py")
"""Every request uses the clocks and executors of `environment/`."""
ELSEWHERE: Final = "broker/replication/hosted_partitions.py"
"""Where a broker carries out a controller's command. Calls below it belong to the command, not to the request."""
NEW_TOPIC: Final = CreateTopicsRequest.CreatableTopic
COMMITTED: Final = OffsetCommitRequest.OffsetCommitRequestTopic


@contextmanager
def files_entered() -> Iterator[set[str]]:
    """The files whose functions run inside the block, relative to the repository."""
    found: set[str] = set()
    prefix = f"{ROOT}/"
    command: list[FrameType] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename.removeprefix(prefix)
        if event == "return" and command and command[-1] is frame:
            command.pop()
        if event != "call":
            return
        if path == ELSEWHERE:
            command.append(frame)
        if path.startswith(COUNTED) and not command[:-1]:
            found.add(path)

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


def create(name: str) -> CreateTopicsRequest:
    """Ask for a topic of one partition."""
    topic = NEW_TOPIC(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
    return CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


def commit() -> OffsetCommitRequest:
    """Commit an offset of `t0-0` for a group without members."""
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    topics = [COMMITTED(name="t0", partitions=[partition])]
    return OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics)


async def trace() -> dict[str, list[str]]:
    """The files that each request enters on a broker that has answered the same request before."""
    requests: list[tuple[str, Callable[[int], Request], int]] = [
        ("CreateTopics", lambda number: create(f"t{number}"), 7),
        ("Produce", lambda _: produce("t0", [b"value"]), 9),
        ("Fetch", lambda _: fetch("t0", 0), 11),
        ("OffsetCommit", lambda _: commit(), 7),
    ]
    entered: dict[str, list[str]] = {}
    async with InProcessBroker() as broker:
        wire: Wire = broker.connect()
        for name, make, version in requests:
            if name == "OffsetCommit":
                await wire.ask(FindCoordinatorRequest(key="g"), 2)
                for _ in range(1000):
                    await asyncio.sleep(0)
            await wire.ask(make(0), version)
            request = make(1)
            with files_entered() as found:
                await wire.ask(request, version)
            entered[name] = sorted(found)
    return entered


def main() -> int:
    """Print the files of each request."""
    for name, files in asyncio.run(trace()).items():
        print(f"{name}: {len(files)} files")
        for path in files:
            print(f"  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
