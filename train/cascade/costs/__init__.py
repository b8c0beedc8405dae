"""Costs of cascades: models of the DiT and the VAE, profiles of a run, and fits to them."""
