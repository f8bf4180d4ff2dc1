"""A small asyncio Kafka client, used by the tools.

From the wire up: `broker_connection` (one TCP connection: versions, pipelined requests, timeouts), `kafka_client`
(bootstrap, metadata, leaders and coordinators, retries), then `admin`, `producer` and `consumer`. `settings` holds what
can be configured, under Kafka's names. docs/decisions/clients.md gives the reasons.
"""
