"""The configuration of training; importing it loads no torch."""
