"""Which frames of a video a player shows, and when: the numbers that the index and every decode agree on."""
