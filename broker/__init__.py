"""The process: everything with asyncio, and the composition of it all. Sub-packages hold the network, one handler
module for each family of APIs, and the owners of state behind them; `stages` puts them together.
docs/decisions/broker.md tells why things are as they are.
"""
