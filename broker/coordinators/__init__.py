"""What every coordinator of the broker needs: time, timers, a log, and shards that come and go with the leadership of
the partitions of an internal topic.
"""
