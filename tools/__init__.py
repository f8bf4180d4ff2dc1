"""Kafka's command-line tools: one module each, run as `python -m tools.NAME`, by `bin/kafka-NAME.sh` or `odradek NAME`.

A tool has Kafka's name, options, output and exit codes, so that scripts written for Kafka's tools work unchanged. Each
has `main(argv) -> int` and calls it as the main program; `odradek` finds the commands by that line. `support` holds
their shared code. docs/decisions/clients.md gives the reasons.
"""
