"""Tars that somebody else wrote become a dataset: looked at once, never changed."""
