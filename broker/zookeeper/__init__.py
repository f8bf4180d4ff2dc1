"""Brokers as clients of ZooKeeper: an implementation of `zookeeper.coordination` over kazoo, and reads of Kafka's nodes
that several owners need.
"""
