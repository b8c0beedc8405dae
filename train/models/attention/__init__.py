"""Attention over packed, patched and sliced sequences, and token positions."""
