"""Clips of a run as columns: closed sources, results of stages, the verdict; pure functions over tables."""
