"""Decoding of a source in display order, with an account of the frames that are lost."""
