"""Scores of sampled videos that need no download."""
