"""WriteTxnMarkers: a transaction coordinator has the leaders of the partitions end a transaction in their logs."""

from __future__ import annotations

from broker.network.registry import RequestContext, api
from broker.transactions.marker_writer import MarkerWriter
from broker.transactions.markers import Marker
from protocol.api_keys import ApiKey
from protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from protocol.topic_partition import TopicPartition, by_topic

_Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
_TopicResult = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
_PartitionResult = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


class MarkerHandlers:
    """Writes markers for a coordinator that is another broker."""

    def __init__(self, writer: MarkerWriter) -> None:
        self._writer = writer

    @api(ApiKey.WRITE_TXN_MARKERS, versions=(0, 1))
    async def write_txn_markers(
        self,
        context: RequestContext,  # noqa: ARG002
        request: WriteTxnMarkersRequest,
    ) -> WriteTxnMarkersResponse:
        """Answered when all markers are replicated, or will not be."""
        markers = [
            Marker(
                marker.producer_id,
                marker.producer_epoch,
                marker.transaction_result,
                marker.coordinator_epoch,
                [TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes],
            )
            for marker in request.markers
        ]
        outcome = await self._writer.write(markers)
        by_producer: dict[int, list[TopicPartition]] = {}
        for producer_id, topic_partition in outcome:
            by_producer.setdefault(producer_id, []).append(topic_partition)
        return WriteTxnMarkersResponse(
            markers=[
                _Result(
                    producer_id=producer_id,
                    topics=[
                        _TopicResult(
                            name=topic,
                            partitions=[
                                _PartitionResult(
                                    partition_index=index,
                                    error_code=outcome[producer_id, TopicPartition(topic, index)],
                                )
                                for index in indexes
                            ],
                        )
                        for topic, indexes in by_topic(partitions).items()
                    ],
                )
                for producer_id, partitions in by_producer.items()
            ]
        )
