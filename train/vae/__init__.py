"""Fine-tuning of video tokenizers: causal 3D VAEs of diffusers."""
