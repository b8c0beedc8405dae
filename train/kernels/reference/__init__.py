"""Reference operators in plain PyTorch, which define correctness and support any tensor."""
