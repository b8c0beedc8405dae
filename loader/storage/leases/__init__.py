"""One writer per output: leases and fences."""
