"""Processes of a run: rendezvous, collectives and heartbeats."""
