"""Published transformers and VAEs of diffusers."""
