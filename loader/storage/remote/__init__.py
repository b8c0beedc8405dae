"""Requests over a network: timeouts, retries, cached blocks."""
