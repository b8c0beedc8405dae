"""What a person runs: the command line, configurations, one module per command, the demo."""
