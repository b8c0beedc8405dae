"""Benchmarks that `reelweave bench` runs."""
