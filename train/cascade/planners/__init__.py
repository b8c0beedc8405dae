"""Planners of cascades."""
