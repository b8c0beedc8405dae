"""Corrections of a plan from measured cascades, slow GPUs and lost ones."""
