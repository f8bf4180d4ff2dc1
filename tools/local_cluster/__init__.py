"""A cluster on this machine: brokers and ZooKeeper as processes, kept in one directory (`odradek cluster start`).

The command starts and signals processes; otherwise it is a client of the brokers, like every tool.
"""
