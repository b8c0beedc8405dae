"""Latent Parallelism: groups of ranks predict overlapping parts of the latents, which are blended every step."""
