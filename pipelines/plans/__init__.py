"""Cascade plans from configurations and measurements."""
