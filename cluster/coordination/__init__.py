"""Agreement between brokers: a contract on a tree of versioned nodes, and a tree that can live in process."""
