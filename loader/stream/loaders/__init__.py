"""Loaders of whole epochs around a stream: by optimizer steps, or by single batches for loops that count these."""
