"""Checks of the operators against float64."""
