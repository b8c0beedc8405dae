"""Times of frames: repaired stamps, and the rates that they show."""
