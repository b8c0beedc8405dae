"""Measurements of a run: parts of a step, ranks' times, operations, peaks, traces."""
