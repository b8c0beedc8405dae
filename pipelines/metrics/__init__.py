"""Metrics for Prometheus, from what curations and training runs write into their folders."""
