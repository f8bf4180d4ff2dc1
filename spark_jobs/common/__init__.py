"""Modules shared by the jobs: session, source, value schemas, options, files next to a table, progress."""
