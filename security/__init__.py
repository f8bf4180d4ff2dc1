"""TLS, SASL and the names of clients: what the keys ssl.* and sasl.* ask for, and both sides of each exchange.

Brokers and clients import it, and it imports neither.
"""
