"""Real ZooKeeper servers: finds the jars, runs the processes."""
