"""The broker's process. Sub-packages hold the network, one handler module for each family of APIs, and the owners of
state that the handlers call; `stages` puts them together. docs/decisions/broker.md gives the reasons.
"""
