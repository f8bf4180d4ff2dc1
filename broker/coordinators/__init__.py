"""The common part of all coordinators of the broker: time, timers, a log, and shards that come and go with the
leadership of the partitions of an internal topic.
"""
