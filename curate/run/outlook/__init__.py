"""Forecast of a run: its costs, and the work of earlier runs that it takes over."""
