"""One term of a controller: what it knows, its right to write, and its ways to the brokers."""

from __future__ import annotations

from collections.abc import Iterable

from broker.controller.broker_requests import BrokerRequests
from broker.environment.contract import Clock
from broker.zookeeper.kafka_zk_client import KafkaZkClient
from cluster.controller.context import ControllerContext
from cluster.controller.transactions import ControllerTerm, fenced
from cluster.zookeeper.coordination import Coordination, CoordinationError, MultiError, NoSpaceError, Operation
from protocol.errors import ApiError, ErrorCode


class TreeDiffersError(MultiError):
    """The tree is not what the context says, and nothing of what was to be written is written."""


class Office:
    """All that the parts of a controller share in one term, which ends with the session at the latest."""

    def __init__(
        self,
        context: ControllerContext,
        term: ControllerTerm,
        coordination: Coordination,
        zk_client: KafkaZkClient,
        requests: BrokerRequests,
        clock: Clock,
        *,
        is_shared: bool,
    ) -> None:
        """`is_shared`: other brokers may use the tree too, so that one that is not there may come back."""
        self.is_shared = is_shared
        self.context = context
        self.zk_client = zk_client
        self.requests = requests
        self.clock = clock
        self._term = term
        self._coordination = coordination
        self.transaction_count = 0
        """Transactions that were begun."""

    async def transact(self, operations: Iterable[Operation]) -> None:
        """Write, if this is still the controller: every transaction checks its term (KAFKA-6082).

        Raises ApiError KAFKA_STORAGE_ERROR when the tree has no room. Every other error means that the office has to be
        given up: MultiError, as another controller has been elected, or the tree is not what the context says;
        ConnectionLossError, as what is written is not known. A TreeDiffersError may be handled instead.
        """
        is_first = True
        for transaction in fenced(operations, self._term, self._coordination.max_transaction_bytes):
            self.transaction_count += 1
            try:
                await self._coordination.multi(transaction)
            except NoSpaceError as error:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
            except MultiError as error:
                cause = error.__cause__
                # The first operation is the check of the term.
                if is_first and error.index > 0 and isinstance(cause, CoordinationError):
                    raise TreeDiffersError(error.index, cause) from cause
                raise
            is_first = False

    def check_broker(self, broker_id: int, broker_epoch: int) -> None:
        """Refuse what a broker asks for in an earlier life. Raises BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH."""
        broker = self.context.live_brokers.get(broker_id)
        if broker is None:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"the broker {broker_id} is not registered")
        if broker.epoch != broker_epoch:
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"the epoch {broker_epoch} of the broker {broker_id} is not the registered one, {broker.epoch}",
            )
