"""The ranks that share a sampled video: their mesh, and the check that they hold the same latents."""
