"""What a reconstruction costs, one term per module."""
