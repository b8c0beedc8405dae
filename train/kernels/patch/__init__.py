"""Transformers of diffusers with our operators in place of their norms, modulations and gates (docs/patch.md)."""
