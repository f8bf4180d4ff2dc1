"""Real ZooKeeper servers: finding the jars, running them."""
