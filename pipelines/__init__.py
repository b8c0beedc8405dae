"""Command line, configurations, one module per command, the demo."""
