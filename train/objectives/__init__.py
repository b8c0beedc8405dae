"""Training objectives: the prediction target for a noisy latent, and the recovery of the clean one."""
