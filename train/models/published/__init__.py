"""Published transformers and VAEs of diffusers, loaded for training."""
