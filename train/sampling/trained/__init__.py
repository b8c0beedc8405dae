"""Trained models, ready to sample or to export."""
