"""The znode tree as the event loop sees it: adapters to `cluster.zookeeper.coordination`, and reads of Kafka's nodes
that more than one owner needs.
"""
