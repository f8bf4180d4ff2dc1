"""Apache Kafka and Odradek side by side: the same load, in turns, one table. `bench/run --help` lists the scenarios.

Decisions:
- The load is a C program over librdkafka (`load.c`), Kafka's own perf tools, and Spark: a load tool in Python would
  measure itself. The table shows the client's CPU next to the broker's, so that the reader sees which side was the
  limit. Offset commits are encoded in advance and replayed as bytes; group members have no timers
  (`bench.rolling_group`).
- Figures vary with the machine, so only ratios within one run are compared. The sides take turns (A B, B A, ...) in
  each round, and the table shows medians over the rounds.
- Each sample gets a separate, freshly started broker: it inherits no JIT code, partitions or garbage from another
  sample, `--only` gives the same figures, and a test run or a notebook gets the same kind of broker. The targets were
  set on such brokers. A JVM becomes several times faster over its first gigabytes, so the peak rates also have `warm`
  lines: the third load on one broker.
- A run that lost or failed a record yields no figure: the load exits with code 1 and the benchmark stops.
- Linux only: CPU seconds and memory are read from /proc.
"""
