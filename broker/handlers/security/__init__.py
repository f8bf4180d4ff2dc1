"""Handlers of requests about who clients are, and how much they may do."""
