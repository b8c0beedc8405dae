"""Checks of a stream at its start: what would train something else than was meant."""
