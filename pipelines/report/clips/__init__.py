"""One clip of a dataset, kept or rejected: which one is meant, what is known of it, and where its bytes lie."""
