"""Who may connect: what the keys ssl.* and sasl.* ask for, of one listener at a time."""
