"""Trains text-to-video diffusion transformers on the dataset of DESIGN section 4."""
