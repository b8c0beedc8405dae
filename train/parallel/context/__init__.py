"""Context parallelism: sequences cut over ranks, with exact attention over all of them."""
