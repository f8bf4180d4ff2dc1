"""Apache Kafka and Odradek side by side: the same load, in turns, one table. `bench/run --help` lists the scenarios.

Decisions:
- The load is a C program over librdkafka (`load.c`), Kafka's own perf tools, and Spark: a load tool in Python would
  measure itself. The client's CPU is printed beside the broker's, so that one can see which side was the limit. Commits
  of offsets are encoded before and replayed as bytes; members of a group have no timers (`bench.rolling_group`).
- Figures move with the machine, so only ratios of one run are compared. The sides take turns (A B, B A, ...) in each
  round, and medians of the rounds are reported.
- Each sample has a broker of its own, just started: no sample inherits another's JIT, partitions or garbage, `--only`
  gives the same figures, and it is what a test run or a notebook gets. The targets were set on such brokers. A JVM gets
  several times better over its first gigabytes; so the peak rates also have `warm` lines: the third load on one broker.
- A figure of a run that lost or failed a record is no figure: the load exits 1 and the benchmark stops.
- Linux only: CPU seconds and memory are read from /proc.
"""
