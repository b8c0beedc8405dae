"""Training objectives: what the model is asked about a noisy latent, and what its answer says about the clean one."""
