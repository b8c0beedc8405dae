"""Patching of diffusers transformers with fused norms, modulations and gates (docs/patch.md)."""
