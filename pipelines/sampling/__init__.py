"""Sampling of many prompts: requests, outputs that are made once, and the run over all ranks."""
