"""Sampling: from noise and a caption to a video."""
