"""Fused blocks: a module for each of ``diffusers.models.transformers``, of the same name."""
