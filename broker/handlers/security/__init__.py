"""Handlers of requests about identities, rights and quotas of clients."""
