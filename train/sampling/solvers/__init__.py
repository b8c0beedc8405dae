"""Solvers of the probability flow: from noise to a clean latent."""
