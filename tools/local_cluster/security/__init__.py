"""TLS and SASL of a cluster on this machine: its authority, certificates, users, and what clients need of them."""
