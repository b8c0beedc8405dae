"""Video tokenizers and text encoders."""
