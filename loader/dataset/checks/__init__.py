"""Verification of a whole dataset, and signatures."""
