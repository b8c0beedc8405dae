"""Long sources, worked on in parts by tasks of their own to the bytes of one pass over the whole."""
