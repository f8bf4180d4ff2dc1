"""Real, unmodified clients against this broker. A package, so that its shared fixtures end with its tests."""
