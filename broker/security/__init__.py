"""Access of clients: keys and certificates, and who is behind a connection."""
