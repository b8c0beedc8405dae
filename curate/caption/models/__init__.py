"""Models that write captions, and how they are asked."""
