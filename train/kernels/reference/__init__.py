"""The operators in plain PyTorch: what every kernel must equal, and what serves any tensor."""
