"""Layouts of weights, gradients and optimizer state on ranks."""
