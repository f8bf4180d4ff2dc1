"""Modules shared by the jobs: session, source, value schemas, options, files beside a table, progress."""
