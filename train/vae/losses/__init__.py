"""Loss terms of a reconstruction, one per module."""
