"""The process: the only room with asyncio, and the only composer.

Decisions, with their reasons:

- **One loop owns all state.** Handlers run to completion between awaits, so appends, high watermarks and group state
  need no locks. What blocks (fsync, cold reads, recovery) goes to the Executor, and touches files only.
- **Handlers answer synchronously when they can.** Produce to a single replica and Fetch with data at hand never create
  a task: a coroutine per request costs more than the request.
- **Fsyncs of logs have one owner** (`group_commit`): a round for each log directory at a time, in which everybody's
  logs are flushed together; who comes meanwhile shares the next one. Producers, flush.ms and sealed segments ask the
  same owner, so that no acknowledgement rests on an fsync that somebody else has begun and not finished.
- **Compaction runs in a process of its own** (`log_cleaner`, `cleaner_worker`): it goes over every record in Python and
  would hold the interpreter, and with it every client, for as long. The process is there only while there is work, of
  low priority, and ends with its input, however the broker ended. What it is asked and what it answers are plain
  values (`storage.clean_task`), so that tests do the same work without a process. It makes files only that no log has
  yet; the loop, which owns the logs, puts them in their place if nothing happened to the log meanwhile.
- **The map of keys holds the keys**, where Kafka's holds hashes of 16 bytes: no key can take another's place, and a
  dictionary is what Python is fast at. It takes some seven times the memory for a key. What the map takes stays
  log.cleaner.dedupe.buffer.size, so it is full after a seventh of Kafka's keys, and the rest is left to the next round.
- **Nothing has to be compiled.** mypyc makes the record code of compaction faster where somebody asks for it
  (`compiled`), from the same source, for the cleaner's process alone.
- **Addresses are bound before anything is touched.** A port in use, a foreign or locked log directory and a bad value
  end the start with one line and exit code 1, and leave every file as it was.
- **Kafka's names for loggers** (`kafka.server.KafkaServer` ...), so that people's log filters and
  `kafka-configs --entity-type broker-loggers` mean what they mean elsewhere.
- `server.py` composes; nobody else constructs an owner of state. `system.py` holds the only calls of the broker's own
  process to the clock, the network, threads and randomness.
"""
