"""Runners of stages: this process or Ray Data, workers per stage, progress."""
