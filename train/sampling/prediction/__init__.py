"""Guided predictions that solvers follow."""
