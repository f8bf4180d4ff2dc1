"""Metadata that the broker answers from memory: configurations in force, internal topics, and producer ids."""
