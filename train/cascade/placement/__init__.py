"""Placement: the GPUs that run each planned cascade."""
