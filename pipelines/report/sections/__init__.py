"""Sections that several pages have: their charts and tables, from numbers alone."""
