"""Parquet and Arrow files of a dataset, checked as they are read."""
