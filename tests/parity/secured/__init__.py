"""Both brokers with an authorizer: the answers to clients with some of the rights."""
