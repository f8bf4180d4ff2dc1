"""Messages as declared classes and the compiled functions that encode and decode them, for each version; frames."""
