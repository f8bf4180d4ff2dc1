"""Three brokers on each side: the answers of each, with all of them running and with one stopped."""
