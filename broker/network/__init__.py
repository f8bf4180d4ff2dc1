"""Connections: bytes in, frames to the dispatcher, replies out in request order.

Decisions, with their reasons:

- One receive buffer serves every connection. The event loop asks for a buffer and fills it in one step, so an idle
  connection needs none of its own; only a frame that arrives in pieces gets a bytearray (`protocol.wire.frames`).
- Requests of a connection take effect in the order in which they were sent: none is taken up before the effects of the
  one in front of it are complete. Only waiting overlaps, where a handler declares it (`Waiting`): a produce that waits
  for replicas does not stop the next one from being appended. Replies leave in request order. Kafka mutes the channel
  instead and pipelines nothing.
- A reply's records are file slices that the kernel sends (`os.sendfile`), so that they are never copied into this
  process. Only slices of 64 KiB and more are worth it, on a plaintext connection whose transport has nothing buffered,
  and only while the pages are in memory: a thread reads what is cold. A full socket needs no descriptor and no watch of
  our own: some bytes written through the transport wait there, and it says when they are gone.
- Nothing is taken up while replies wait for the client to read, nor while too many of its requests wait: TCP pushes
  back on the client. A client that stops reading costs one batch of replies.
- One client has no power over the others: its requests give up the event loop after 5 ms, what it does not read is
  bounded in all (`ReplyMemory`), and no bytes in either direction means idle, whatever is queued.
"""
