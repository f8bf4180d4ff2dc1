"""Access of clients: keys and certificates, who is behind a connection, and who may do what."""
