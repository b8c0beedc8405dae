"""Commands to begin with."""
