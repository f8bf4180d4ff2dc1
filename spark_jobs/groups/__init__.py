"""Consumer groups: how far they are behind, measured from samples of their offsets."""
