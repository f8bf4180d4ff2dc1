"""Consumer groups: how far they lag, measured from samples of their offsets."""
