"""TLS and SASL towards brokers; imported only where security.protocol asks for it."""
