"""Coordination as the broker's event loop sees it: adapters to the contract in `cluster.coordination.contract`."""
