"""The places where conditioning meets a transformer's tokens, each as one operator (docs/kernels.md)."""
