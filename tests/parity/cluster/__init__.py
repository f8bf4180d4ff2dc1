"""Three brokers on each side: what each of them answers, with all of them there and with one of them gone."""
