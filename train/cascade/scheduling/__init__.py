"""Scheduling primitives that all planners share, and an independent validity check."""
