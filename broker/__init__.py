"""The process: the only room with asyncio, and the only composer.

Decisions, with their reasons:

- **One loop owns all state.** Handlers run to completion between awaits, so appends, high watermarks and group state
  need no locks. What blocks (fsync, cold reads, recovery) goes to the Executor, and touches files only.
- **Handlers answer synchronously when they can.** Produce to a single replica and Fetch with data at hand never create
  a task: a coroutine per request costs more than the request.
- **Fsyncs of logs have one owner** (`group_commit`): a round for each log directory at a time, in which everybody's
  logs are flushed together; who comes meanwhile shares the next one. Producers, flush.ms and sealed segments ask the
  same owner, so that no acknowledgement rests on an fsync that somebody else has begun and not finished.
- **Addresses are bound before anything is touched.** A port in use, a foreign or locked log directory and a bad value
  end the start with one line and exit code 1, and leave every file as it was.
- **Kafka's names for loggers** (`kafka.server.KafkaServer` ...), so that people's log filters and
  `kafka-configs --entity-type broker-loggers` mean what they mean elsewhere.
- `server.py` composes; nobody else constructs an owner of state. `system.py` holds the only calls to the clock, the
  network, threads and randomness.
"""
