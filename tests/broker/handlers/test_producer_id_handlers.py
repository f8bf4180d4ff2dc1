"""InitProducerId, and the blocks of its ids."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.handlers.producer_ids import ProducerIdHandlers
from broker.transactions.transaction_coordinator_service import ProducerIds
from cluster.znodes import PRODUCER_ID_BLOCK, ProducerIdBlock
from protocol.errors import ApiError, ErrorCode
from protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from tests.kit.controller.controller_fixtures import Cluster, context
from tests.kit.coordination_fixtures import in_loop
from zookeeper.coordination import ConnectionLossError


async def init(ids: ProducerIds) -> InitProducerIdResponse:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    nobody: Any = None
    response = await ProducerIdHandlers(ids, nobody).init_producer_id(context(5), request)
    response.to_bytes(5)
    return response


class Blocks:
    """Blocks of ten. Each of `failures` applies to one request."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self._next = 0

    async def allocate(self) -> ProducerIdBlock:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        first = self._next
        self._next += 10
        return ProducerIdBlock(0, first, first + 9)


@in_loop
async def test_no_producer_id_is_given_twice() -> None:
    ids = ProducerIds(Blocks().allocate)
    assert await asyncio.gather(*(ids.next_id() for _ in range(35))) == list(range(35))


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ConnectionLossError("/latest_producer_id_block"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full"), ErrorCode.KAFKA_STORAGE_ERROR),
        (ValueError("a bug"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
@in_loop
async def test_a_block_that_cannot_be_had_is_asked_for_again(failure: Exception, told: ErrorCode) -> None:
    ids = ProducerIds(Blocks(failure).allocate)
    refused = await init(ids)
    assert (refused.error_code, refused.producer_id, refused.producer_epoch) == (told, -1, -1)
    given = await init(ids)
    assert (given.error_code, given.producer_id, given.producer_epoch) == (ErrorCode.NONE, 0, 0)


@pytest.mark.parametrize(
    "block", [b"nobody's json", b'{"version":1}', ProducerIdBlock(1, 2**63 - 1999, 2**63 - 1000).encode()]
)
@in_loop
async def test_a_block_that_makes_no_sense_is_an_error_and_no_hang_up(block: bytes) -> None:
    cluster = await Cluster().start()
    await cluster.coordination.set(PRODUCER_ID_BLOCK, block)
    refused = await init(ProducerIds(cluster.allocate_producer_ids))
    assert (refused.error_code, refused.producer_id) == (ErrorCode.UNKNOWN_SERVER_ERROR, -1)
    assert (await cluster.coordination.get(PRODUCER_ID_BLOCK))[0] == block
    await cluster.close()


@in_loop
async def test_the_last_block_is_given() -> None:
    cluster = await Cluster().start()
    await cluster.coordination.set(PRODUCER_ID_BLOCK, ProducerIdBlock(1, 2**63 - 2000, 2**63 - 1001).encode())
    given = await init(ProducerIds(cluster.allocate_producer_ids))
    await cluster.close()
    assert (given.error_code, given.producer_id) == (ErrorCode.NONE, 2**63 - 1000)
