"""Transactions of producers, and questions about them."""
