"""The znode tree as the event loop sees it: implementations of `cluster.zookeeper.coordination`, and reads of Kafka's
nodes that several owners need.
"""
