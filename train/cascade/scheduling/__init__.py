"""Schedules: building blocks that all planners share, and the check of their rules."""
