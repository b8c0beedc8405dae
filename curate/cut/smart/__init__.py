"""Smart cuts of H.264 and HEVC: whole groups of pictures copied, the frames at their edges encoded."""
