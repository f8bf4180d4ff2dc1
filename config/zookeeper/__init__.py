"""How a broker reaches ZooKeeper: the servers of zookeeper.connect, TLS, and the login of a JAAS file."""
