"""Security of clients: keys and certificates, authentication, and authorization."""
