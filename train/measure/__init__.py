"""Measurements of a run: step timings, FLOPs, peaks, profiles."""
