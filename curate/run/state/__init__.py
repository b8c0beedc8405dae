"""State of a curation: what is left to do, the verdict on every span, and the samples of shards."""
