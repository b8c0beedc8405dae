"""Placement of planned cascades on the GPUs of a cluster."""
