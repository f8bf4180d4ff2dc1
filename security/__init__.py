"""TLS, SASL and principals: the configuration in ssl.* and sasl.*, and both sides of each exchange.

Brokers and clients import this package, and it imports neither.
"""
