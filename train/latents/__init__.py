"""Latents and text contexts computed once: which, of what, and a shard of them."""
