"""Frames of a video that a player shows, and their times: the numbers that the index and every decode agree on."""
