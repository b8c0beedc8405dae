"""Decoding of a source: container, frame times, pictures, limits."""
