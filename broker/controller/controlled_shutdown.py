"""The end of a broker that others can take over from: leaders move while it still serves (Kafka's
`KafkaServer.controlledShutdown`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from broker.controller.controller_api import ControllerApi
from cluster.zookeeper.coordination import CoordinationError
from config.broker_config import BrokerConfig
from protocol.errors import ApiError

logger = logging.getLogger("kafka.server.KafkaServer")


async def controlled_shutdown(
    controller: ControllerApi,
    broker_id: int,
    broker_epoch: Callable[[], int],
    config: BrokerConfig,
    is_alone: Callable[[], bool],
) -> bool:
    """Ask the controller to move all leadership away from this broker; gives whether it could. It is asked
    controlled.shutdown.max.retries times, with controlled.shutdown.retry.backoff.ms in between; but once only where no
    other broker is alive. Kafka keeps the last broker of a cluster waiting for nobody.
    """
    if not config.controlled_shutdown_enable:
        return False
    attempts = config.controlled_shutdown_max_retries
    backoff_ms = config.controlled_shutdown_retry_backoff_ms
    for left in reversed(range(attempts)):
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
        if is_alone():
            logger.info("No other broker is alive: there is nobody to lead what this one leads")
            break
        if left:
            await asyncio.sleep(backoff_ms / 1000)
            logger.warning("Retrying controlled shutdown after the previous attempt failed...")
    logger.warning("Proceeding to do an unclean shutdown as all the controlled shutdown attempts failed")
    return False
