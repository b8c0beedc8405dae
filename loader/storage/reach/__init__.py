"""Permissions of names: public addresses, allowed prefixes."""
