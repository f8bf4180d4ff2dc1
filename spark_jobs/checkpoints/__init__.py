"""Checkpoints of queries beside the topics that they were written about."""
