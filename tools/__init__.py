"""Kafka's command-line tools: one module each, run as `python -m tools.NAME`, by `bin/kafka-NAME.sh` or `odradek NAME`.

A tool has Kafka's name, options, output and exit codes, so that scripts written for Kafka's tools go on working; the
help texts are our own. Every module has `main(argv) -> int` and runs it when it is the main program; that line is also
how `odradek` finds the commands. Modules without it are shared: `options` and `arguments` (options as Kafka's tools
take them), `common` (starting a tool, its client, its errors) and others with a leading role in several tools.

Decisions:
- Options are read by `options.OptionParser`, not argparse: Kafka's tools use jopt-simple, where `--shift-by -5` is a
  value, `--state` takes one or not, options come several times and no prefix of a name is enough. The tools that Kafka
  writes with argparse4j (perf and verifiable producers and consumers) use argparse, of which that is a copy
  (`arguments`).
- What Kafka prints on standard output and the exit code are matched exactly, except where its order is that of a hash
  table: there, ours is sorted. Standard error says the same in fewer words: no stack traces.
- `--version` names Odradek's version, because it is the tool's own.
"""
