"""Dtypes of weights and computations: what stays in float32, and weights in fewer bits."""
