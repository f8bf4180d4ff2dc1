"""Modules shared by the command-line tools: options, output, and reading and writing records."""
