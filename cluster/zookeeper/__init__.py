"""The znode tree: the contract every coordination service meets, the tree as a pure state machine, and its journal."""
