"""Planners of cascades: search, pruning and exact methods."""
