"""The znode tree: the contract of every coordination service, the tree as a pure state machine, and its journal."""
