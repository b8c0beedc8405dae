"""Where conditioning meets a transformer's tokens, each place as one operator (docs/kernels.md); launching csrc/."""
