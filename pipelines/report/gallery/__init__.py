"""Every clip of a dataset to look at, kept or not: rows in columns, strips of frames, the page and its data files."""
