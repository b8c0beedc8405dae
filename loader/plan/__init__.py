"""Step plans: the microbatches of an epoch, balanced over the ranks."""
