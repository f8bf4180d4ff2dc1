"""Apache Kafka and Odradek side by side: the same load, in turns, one table. `bench/run --help` lists the scenarios.

Decisions:
- The load is a C program over librdkafka (`load.c`), Kafka's own perf tools, and Spark: a load tool in Python would
  measure itself. The client's CPU is printed beside the broker's, so that one can see which side was the limit.
- Figures move with the machine, so only ratios of one run are compared. The sides take turns (A B, B A, ...) in each
  round, and medians of the rounds are reported.
- Brokers are fresh for each scenario, so that none inherits another's JIT, partitions or garbage, and `--only` gives
  the same figures. Within a scenario they stay: the JVM warms up over the rounds, and the median is a warm one.
- A figure of a run that lost or failed a record is no figure: the load exits 1 and the benchmark stops.
- Linux only: CPU seconds and memory are read from /proc.
"""
