"""DescribeTransactions and ListTransactions (KIP-664, KIP-994)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.network.registry import RequestContext, api
from broker.network.shares import Split
from broker.security.access import Client
from broker.security.rights import ClientRequest, Outcome, then
from broker.transactions.transaction_coordinator_service import TransactionCoordinatorService
from environment.slices import in_slices
from protocol.acl_types import AclOperation, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from protocol.topic_partition import by_topic

if TYPE_CHECKING:
    from cluster.transactions.transaction_table import Transaction

_Described = DescribeTransactionsResponse.TransactionState
_Topic = DescribeTransactionsResponse.TopicData
_Listed = ListTransactionsResponse.TransactionState


class TransactionAdminHandlers:
    """Describes the transactional ids coordinated here."""

    def __init__(self, service: TransactionCoordinatorService) -> None:
        self._service = service

    def _guard_describe(self, asked: ClientRequest[DescribeTransactionsRequest]) -> Outcome:
        """DESCRIBE on each transactional id. Shows only those topics of a transaction that the client may describe."""
        client, ids = asked.client, asked.request.transactional_ids
        denied = client.denied(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, ids)
        asked.request.transactional_ids = [each for each in ids if each not in denied]

        def show(response: DescribeTransactionsResponse) -> DescribeTransactionsResponse:
            described = iter(response.transaction_states)
            response.transaction_states = [
                _refusal(each, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
                if each in denied
                else _shown(client, next(described))
                for each in ids
            ]
            return response

        return then(asked.proceed(), show)

    @api(
        ApiKey.DESCRIBE_TRANSACTIONS,
        versions=(0, 0),
        right=_guard_describe,
        reads_only=True,
        splits=[Split("transactional_ids")],
    )
    def describe_transactions(
        self,
        context: RequestContext,  # noqa: ARG002
        request: DescribeTransactionsRequest,
    ) -> DescribeTransactionsResponse:
        """Describe each transactional id, or return its error: TRANSACTIONAL_ID_NOT_FOUND if its producer is
        unknown.
        """
        return DescribeTransactionsResponse(
            throttle_time_ms=0, transaction_states=[self._describe(each) for each in request.transactional_ids]
        )

    def _describe(self, transactional_id: str) -> _Described:
        try:
            transaction = self._service.runtime_of(transactional_id).shard.get(transactional_id)
        except ApiError as error:
            return _refusal(transactional_id, error.error_code)
        if transaction is None:
            return _refusal(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        metadata = transaction.metadata
        partitions = transaction.outstanding
        return _Described(
            error_code=ErrorCode.NONE,
            transactional_id=transactional_id,
            transaction_state=metadata.state.label,
            transaction_timeout_ms=metadata.timeout_ms,
            transaction_start_time_ms=metadata.start_ms,
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            topics=[_Topic(topic=topic, partitions=indexes) for topic, indexes in by_topic(partitions).items()],
        )

    def _guard_list(self, asked: ClientRequest[ListTransactionsRequest]) -> Outcome:
        """Shows the transactional ids that the client may describe."""

        def visible(response: ListTransactionsResponse) -> ListTransactionsResponse:
            ids = [each.transactional_id for each in response.transaction_states]
            hidden = asked.client.denied(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, ids)
            response.transaction_states = [
                each for each in response.transaction_states if each.transactional_id not in hidden
            ]
            return response

        return then(asked.proceed(), visible)

    @api(
        ApiKey.LIST_TRANSACTIONS,
        versions=(0, 1),
        right=_guard_list,
        reads_only=True,
        whole="its arrays are filters",
    )
    async def list_transactions(
        self,
        context: RequestContext,  # noqa: ARG002
        request: ListTransactionsRequest,
    ) -> ListTransactionsResponse:
        """List the transactional ids that match the filters. COORDINATOR_LOAD_IN_PROGRESS until all are loaded."""
        service = self._service
        error_code = ErrorCode.NONE
        if service.is_closed:
            error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif service.is_loading:
            error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        response = ListTransactionsResponse(
            throttle_time_ms=0, error_code=error_code, unknown_state_filters=[], transaction_states=[]
        )
        if error_code:
            return response
        from cluster.transactions.transaction_records import TransactionState

        known = {state.label for state in TransactionState}
        response.unknown_state_filters = [name for name in request.state_filters if name not in known]
        now_ms = service.clock.now_ms()
        for runtime in service.runtimes():
            async for transactional_id in in_slices(runtime.shard.ids(), service.clock):
                transaction = runtime.shard.get(transactional_id)
                if transaction is not None and _passes(transaction, request, now_ms):
                    metadata = transaction.metadata
                    response.transaction_states.append(
                        _Listed(
                            transactional_id=transactional_id,
                            producer_id=metadata.producer_id,
                            transaction_state=metadata.state.label,
                        )
                    )
        return response


def _shown(client: Client, state: _Described) -> _Described:
    hidden = client.denied(AclOperation.DESCRIBE, ResourceType.TOPIC, [topic.topic for topic in state.topics])
    state.topics = [topic for topic in state.topics if topic.topic not in hidden]
    return state


def _passes(transaction: Transaction, request: ListTransactionsRequest, now_ms: int) -> bool:
    metadata = transaction.metadata
    if request.producer_id_filters and metadata.producer_id not in request.producer_id_filters:
        return False
    if request.state_filters and metadata.state.label not in request.state_filters:
        return False
    return request.duration_filter < 0 or now_ms - metadata.start_ms > request.duration_filter


def _refusal(transactional_id: str, error_code: ErrorCode) -> _Described:
    return _Described(
        error_code=error_code,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=[],
    )
