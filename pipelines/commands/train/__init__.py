"""Commands that train, and that use what a run leaves."""
