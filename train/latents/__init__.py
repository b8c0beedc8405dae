"""Stored latents and text contexts: selection, encoding, and shards of them."""
