"""Cascade training: manifest, costs, plan and computation of each step."""
