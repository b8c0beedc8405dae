"""Parallelism of one run over its ranks; model code is independent of it."""
