"""A new version of a dataset, with latents beside or instead of its clips."""
