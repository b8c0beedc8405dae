"""Smart cuts of H.264: whole groups of pictures copied, the frames at their edges encoded."""
