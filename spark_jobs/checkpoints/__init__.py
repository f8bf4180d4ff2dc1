"""Checkpoints of queries, compared with the topics that the queries read."""
