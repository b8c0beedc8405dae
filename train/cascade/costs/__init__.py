"""Cost models of cascades: DiT, VAE and text encoder, profiles of a run, and fits."""
