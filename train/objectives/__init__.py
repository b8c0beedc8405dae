"""Training objectives: from a clean latent to a loss per sample."""
