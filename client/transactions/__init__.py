"""Transactions of producers, and their administration."""
