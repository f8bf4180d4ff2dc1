"""Connections: bytes in, frames to the dispatcher, replies out in request order.

Decisions, with their reasons:

- One receive buffer serves every connection. The event loop asks for a buffer and fills it in one step, so an idle
  connection needs none of its own; only a frame that arrives in pieces gets a bytearray (`protocol.frames`).
- Requests of a connection are taken up one after another but may wait together: a produce that waits for replicas does
  not stop the next one from being appended. Replies leave in request order, which clients rely on. Kafka mutes the
  channel instead and pipelines nothing.
- A reply's records are file slices, read when the socket has room. A client that stops reading costs one chunk.
- Reading pauses while a connection's replies back up or too many of its requests wait: TCP pushes back on the client.
"""
