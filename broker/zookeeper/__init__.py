"""The znode tree as the event loop sees it: adapters to the contract in `cluster.zookeeper.contract`, and the reads of
Kafka's nodes that more than one owner needs.
"""
