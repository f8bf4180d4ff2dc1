"""A small asyncio Kafka client, used by the tools.

From the wire up: `broker_connection` (one TCP connection: versions, pipelined requests, timeouts), `kafka_client`
(bootstrap, metadata, leaders and coordinators, retries), then `admin`, `producer` and `consumer`; `transactions`
belongs to the producer. `settings` holds the settings under Kafka's names. docs/decisions/clients.md has the reasons.
"""
