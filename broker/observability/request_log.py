"""A line for each answered request, for whoever sets `kafka.request.logger` to DEBUG (Kafka's kafka-request.log).

The line is that of Kafka's `RequestChannel`: "Completed request:" and JSON with Kafka's names, without the bodies of
request and response and without the times that this broker does not tell apart.
"""

from __future__ import annotations

import json
import logging

from broker.network.registry import RequestContext, Route

request_logger = logging.getLogger("kafka.request.logger")


def log_completed(route: Route, context: RequestContext, correlation_id: int, peer: str, time_s: float) -> None:
    """Log that a request of `peer` was answered, `time_s` seconds after it was taken up."""
    if not request_logger.isEnabledFor(logging.DEBUG):
        return
    described = {
        "requestHeader": {
            "requestApiKey": int(route.api_key),
            "requestApiVersion": context.api_version,
            "correlationId": correlation_id,
            "clientId": context.client_id,
            "requestApiKeyName": route.api_key.name,
        },
        "connection": peer,
        "totalTimeMs": round(time_s * 1000, 3),
        "securityProtocol": context.security_protocol,
        "principal": str(context.principal),
        "listener": context.listener_name,
    }
    request_logger.debug("Completed request:%s", json.dumps(described, separators=(",", ":")))
