"""Datasets over tars of other origin, which are read once and never changed."""
