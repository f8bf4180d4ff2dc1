"""An embedded ZooKeeper: the data model that brokers need (`coordination`), the tree as a pure state machine with a
journal, sessions within a process, and a server in ZooKeeper's wire protocol. It knows nothing of brokers.
"""
