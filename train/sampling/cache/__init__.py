"""Approximate sampling: blocks whose change is reused from an earlier evaluation."""
