"""Both brokers with an authorizer: what clients with some rights are answered."""
