"""How a broker hands over before it stops: its leaders move while it still serves (Kafka's
`KafkaServer.controlledShutdown`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

from broker.controller.broker_requests import ControllerApi
from broker.metadata.metadata_cache import MetadataCache
from cluster.metadata_image import MetadataImage
from config.broker_config import BrokerConfig
from protocol.errors import ApiError
from zookeeper.coordination import CoordinationError

logger = logging.getLogger("kafka.server.KafkaServer")


async def controlled_shutdown(
    controller: ControllerApi,
    broker_id: int,
    broker_epoch: Callable[[], int],
    config: BrokerConfig,
    metadata: MetadataCache,
) -> bool:
    """Ask the controller to move all leadership away from this broker; returns whether it did.

    Makes controlled.shutdown.max.retries attempts, controlled.shutdown.retry.backoff.ms apart. A change of the
    controller or of the live brokers triggers an extra attempt at once: when several brokers stop together, the answer
    stays the same until then. Stops retrying when no other broker is alive. Kafka waits for the backoff in both cases.
    """
    if not config.controlled_shutdown_enable:
        return False
    left = config.controlled_shutdown_max_retries
    backoff_s = config.controlled_shutdown_retry_backoff_ms / 1000
    has_changed = asyncio.Event()
    metadata.add_listener(partial(_note_change, has_changed))
    while left:
        left -= 1
        has_changed.clear()
        try:
            remaining = await controller.controlled_shutdown(broker_id, broker_epoch())
        except (ApiError, OSError, CoordinationError) as error:
            logger.warning("Error during controlled shutdown: %s", error)
        else:
            if not remaining:
                logger.info("Controlled shutdown request returned successfully")
                return True
            names = ",".join(map(str, remaining))
            logger.info("Remaining partitions to move: %s", names)
        if metadata.image.brokers.keys() <= {broker_id}:
            logger.info("No other broker is alive to take over leadership")
            break
        if left:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(has_changed.wait(), backoff_s)
                left += 1
            logger.warning("Retrying controlled shutdown after the previous attempt failed...")
    logger.warning("Proceeding to do an unclean shutdown as all the controlled shutdown attempts failed")
    return False


def _note_change(has_changed: asyncio.Event, old: MetadataImage, new: MetadataImage) -> None:
    if new.controller_id != old.controller_id or new.brokers.keys() != old.brokers.keys():
        has_changed.set()
