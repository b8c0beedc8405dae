"""Attention of packed, cut and sliced sequences, and positions of tokens."""
