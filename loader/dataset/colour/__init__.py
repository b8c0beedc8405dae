"""Colour of frames: 8-bit SDR pictures of deep and HDR frames, for curation and training alike."""
