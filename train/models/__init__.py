"""Models: diffusion transformers, video tokenizers, text encoders."""
