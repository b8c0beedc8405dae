"""Removal of clips and sources from a dataset, for good."""
