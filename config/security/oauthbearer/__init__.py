"""SASL/OAUTHBEARER: which tokens a listener takes, and where one who connects has its own (KIP-255, KIP-768)."""
