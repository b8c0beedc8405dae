"""The processes of a run: their rendezvous, collectives and heartbeats."""
