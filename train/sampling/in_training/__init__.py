"""Sampling with a model in a layout of training: its ranks hold parts of the weights."""
