"""Startup in stages. Each stage is a complete object that is passed to the next one, and releases what it opened."""
