"""Inputs of a run: folders, prefixes, lists, web addresses."""
