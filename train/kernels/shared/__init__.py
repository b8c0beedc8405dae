"""Shared by the operators: norm, modulation, rows of tokens, and the bytes that a pass moves."""
