"""Metadata that the broker serves from memory: current configurations, internal topics, and producer ids."""
