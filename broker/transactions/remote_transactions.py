"""Requests between brokers about transactions: writing markers, and checking whether a transaction includes a
partition.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from broker.inter_broker.command_codec import ADD_PARTITIONS_TO_TXN_VERSION, WRITE_TXN_MARKERS_VERSION
from broker.inter_broker.inter_broker_client import BrokerClients
from broker.transactions.marker_writer import Marker, MarkerResults
from broker.transactions.transaction_guards import Verdict, VerificationRequest
from client.errors import DisconnectedError
from protocol.errors import ErrorCode
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from protocol.topic_partition import TopicPartition, by_topic

logger = logging.getLogger("kafka.coordinator.transaction.TransactionMarkerChannelManager")

_Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
_Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
_Marker = WriteTxnMarkersRequest.WritableTxnMarker
_MarkerTopic = WriteTxnMarkersRequest.WritableTxnMarkerTopic


async def write_markers(clients: BrokerClients, broker_id: int, markers: Sequence[Marker]) -> MarkerResults:
    """Make another broker write markers; see `marker_sender.WriteMarkers`."""
    request = WriteTxnMarkersRequest(
        markers=[
            _Marker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.is_commit,
                topics=[
                    _MarkerTopic(name=topic, partition_indexes=indexes)
                    for topic, indexes in by_topic(marker.partitions).items()
                ],
                coordinator_epoch=marker.coordinator_epoch,
            )
            for marker in markers
        ]
    )
    client = clients.of(broker_id)
    try:
        response = await client.ask(request, WriteTxnMarkersResponse, WRITE_TXN_MARKERS_VERSION)
    except DisconnectedError as error:
        logger.info("Transaction markers could not be sent to broker %d: %s", broker_id, error)
        return {}
    return {
        (marked.producer_id, TopicPartition(topic.name, each.partition_index)): ErrorCode.of(each.error_code)
        for marked in response.markers
        for topic in marked.topics
        for each in topic.partitions
    }


async def ask_coordinator(clients: BrokerClients, broker_id: int, verification: VerificationRequest) -> Verdict:
    """Ask the coordinator on another broker. Without an answer, the verdict is NETWORK_EXCEPTION."""
    transaction = _Transaction(
        transactional_id=verification.transactional_id,
        producer_id=verification.producer_id,
        producer_epoch=verification.producer_epoch,
        verify_only=True,
        topics=[_Topic(name=topic, partitions=indexes) for topic, indexes in by_topic(verification.partitions).items()],
    )
    request = AddPartitionsToTxnRequest(transactions=[transaction])
    client = clients.of(broker_id)
    try:
        response = await client.ask(request, AddPartitionsToTxnResponse, ADD_PARTITIONS_TO_TXN_VERSION)
    except DisconnectedError:
        return dict.fromkeys(verification.partitions, ErrorCode.NETWORK_EXCEPTION)
    if response.error_code:
        return dict.fromkeys(verification.partitions, ErrorCode.of(response.error_code))
    results = {
        TopicPartition(topic.name, each.partition_index): ErrorCode.of(each.partition_error_code)
        for result in response.results_by_transaction
        for topic in result.topic_results
        for each in topic.results_by_partition
    }
    return {each: results.get(each, ErrorCode.UNKNOWN_SERVER_ERROR) for each in verification.partitions}
