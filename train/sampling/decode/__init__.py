"""Decode of latents to videos: tiles over ranks, within a memory budget."""
