"""A small asyncio Kafka client, shared by the tools and by brokers that talk to each other.

From the wire up: `connection` (one TCP connection: negotiated versions, pipelined requests, timeouts), `cluster`
(bootstrap, metadata, who leads and coordinates what, retries), then `admin`, `producer` and `consumer`. `settings`
holds what can be configured, under Kafka's names.

Decisions:
- It imports `protocol` and nothing else of ours, so that `broker` and `tools` can both stand on it.
- One event loop, no threads. Time is the loop's; connections, the wall clock and randomness are arguments.
- Batches are the unit: a producer builds one from columns of values, a consumer hands out batches undecoded to those
  who ask for them. Only what prints records pays for records.
- PLAINTEXT only. Asking for another security protocol is an error, never a silent downgrade.
- Requests go out in the highest version that both sides know; features of newer versions are left unused rather than
  emulated in older ones.
"""
