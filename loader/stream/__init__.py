"""A rank's stream of microbatches: order, state, curriculum, whole steps."""
