"""Configurations of commands, resolved from files and options; their pages in docs/."""
